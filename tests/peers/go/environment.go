package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	pb "dm_env_rpc/v1"
)

const (
	payloadUID  = 1
	stepsUID    = 12
	metadataUID = 13
)

// What is echoed, each under the number of its DataType.
var dtypes = []string{"float", "double", "int8", "int32", "int64", "uint8", "uint32", "uint64",
	"bool", "string", "proto"}

type world struct {
	name    string
	specs   *pb.ActionObservationSpecs
	payload *pb.Tensor // nil where the world echoes
	length  int
	delay   time.Duration

	mutex    sync.Mutex
	hasAgent bool
	running  bool
	told     chan struct{} // closed when the agent knows that its sequence is interrupted
	steps    int
}

// tell lets those go on who wait until the agent knows; the mutex is held.
func (w *world) tell() bool {
	if w.told == nil {
		return false
	}
	close(w.told)
	w.told = nil
	return true
}

type worlds struct {
	mutex   sync.Mutex
	byName  map[string]*world
	created int
}

func echoSpecs(shape []int32) *pb.ActionObservationSpecs {
	specs := &pb.ActionObservationSpecs{
		Actions: map[uint64]*pb.TensorSpec{},
		Observations: map[uint64]*pb.TensorSpec{
			stepsUID:    {Name: "steps", Dtype: pb.DataType_INT64},
			metadataUID: {Name: "metadata", Dtype: pb.DataType_STRING, Shape: []int32{-1}},
		},
	}
	for i, name := range dtypes {
		spec := &pb.TensorSpec{Name: name, Dtype: pb.DataType(i + 1), Shape: shape}
		specs.Actions[uint64(i+1)] = spec
		specs.Observations[uint64(i+1)] = spec
	}
	return specs
}

func (all *worlds) create(settings map[string]*pb.Tensor) (string, error) {
	made := &world{}
	payload, bytes, shape := "echo", 0, []int32{-1}
	var err error
	for name, tensor := range settings {
		switch name {
		case "payload":
			payload, err = text(name, tensor)
		case "bytes":
			bytes, err = integer(name, tensor)
		case "shape":
			shape, err = integers(name, tensor)
		case "length":
			made.length, err = integer(name, tensor)
		case "delay":
			var seconds float64
			seconds, err = number(name, tensor)
			made.delay = time.Duration(seconds * float64(time.Second))
		default:
			err = refuse(codes.InvalidArgument, "no setting %q here", name)
		}
		if err != nil {
			return "", err
		}
	}
	if payload == "echo" {
		made.specs = echoSpecs(shape)
	} else {
		spec, tensor, err := makePayload(payload, bytes)
		if err != nil {
			return "", err
		}
		made.payload = tensor
		made.specs = &pb.ActionObservationSpecs{
			Actions:      map[uint64]*pb.TensorSpec{1: {Name: "action", Dtype: pb.DataType_INT32}},
			Observations: map[uint64]*pb.TensorSpec{payloadUID: spec},
		}
	}
	all.mutex.Lock()
	defer all.mutex.Unlock()
	made.name = fmt.Sprintf("world-%d", all.created)
	all.created++
	all.byName[made.name] = made
	return made.name, nil
}

func (all *worlds) find(name string) (*world, error) {
	all.mutex.Lock()
	defer all.mutex.Unlock()
	if found := all.byName[name]; found != nil {
		return found, nil
	}
	return nil, refuse(codes.NotFound, "no world %q", name)
}

func (all *worlds) destroy(name string) error {
	found, err := all.find(name)
	if err != nil {
		return err
	}
	found.mutex.Lock()
	defer found.mutex.Unlock()
	if found.hasAgent {
		return refuse(codes.FailedPrecondition, "world %q has an agent", name)
	}
	all.mutex.Lock()
	defer all.mutex.Unlock()
	delete(all.byName, name)
	return nil
}

// session is the part of one connection.
type session struct {
	worlds   *worlds
	context  context.Context
	metadata []string
	world    *world
	acted    map[uint64]*pb.Tensor
}

func noSettings(settings map[string]*pb.Tensor) error {
	for name := range settings {
		return refuse(codes.InvalidArgument, "no setting %q here", name)
	}
	return nil
}

func (s *session) join(request *pb.JoinWorldRequest) error {
	if s.world != nil {
		return refuse(codes.FailedPrecondition, "joined to %q already", s.world.name)
	}
	found, err := s.worlds.find(request.WorldName)
	if err != nil {
		return err
	}
	if err := noSettings(request.Settings); err != nil {
		return err
	}
	found.mutex.Lock()
	defer found.mutex.Unlock()
	if found.hasAgent {
		return refuse(codes.FailedPrecondition, "the world has its agent")
	}
	found.hasAgent, found.running, found.steps = true, false, 0
	s.world = found
	return nil
}

func (s *session) leave() {
	if s.world == nil {
		return
	}
	s.world.mutex.Lock()
	s.world.hasAgent, s.world.running = false, false
	s.world.tell()
	s.world.mutex.Unlock()
	s.world, s.acted = nil, nil
}

func (s *session) joined() error {
	if s.world == nil {
		return refuse(codes.FailedPrecondition, "not joined to a world")
	}
	return nil
}

func (s *session) step(request *pb.StepRequest) (*pb.StepResponse, error) {
	if err := s.joined(); err != nil {
		return nil, err
	}
	for _, uid := range request.RequestedObservations {
		if s.world.specs.Observations[uid] == nil {
			return nil, refuse(codes.InvalidArgument, "no observation %d", uid)
		}
	}
	time.Sleep(s.world.delay)
	state, err := s.advance(request)
	if err != nil {
		return nil, err
	}
	response := &pb.StepResponse{State: state, Observations: map[uint64]*pb.Tensor{}}
	for _, uid := range request.RequestedObservations {
		response.Observations[uid] = s.observe(uid)
	}
	return response, nil
}

func (s *session) advance(request *pb.StepRequest) (pb.EnvironmentStateType, error) {
	world := s.world
	world.mutex.Lock()
	defer world.mutex.Unlock()
	if world.tell() {
		world.running = false
		return pb.EnvironmentStateType_INTERRUPTED, nil
	}
	if !world.running {
		world.running, world.steps, s.acted = true, 0, map[uint64]*pb.Tensor{}
		return pb.EnvironmentStateType_RUNNING, nil
	}
	for uid, tensor := range request.Actions {
		spec := world.specs.Actions[uid]
		if spec == nil {
			return 0, refuse(codes.InvalidArgument, "no action %d", uid)
		}
		if err := conform(spec, tensor); err != nil {
			return 0, err
		}
	}
	for uid, tensor := range request.Actions {
		s.acted[uid] = tensor
	}
	world.steps++
	if world.steps != world.length {
		return pb.EnvironmentStateType_RUNNING, nil
	}
	world.running = false
	return pb.EnvironmentStateType_TERMINATED, nil
}

func (s *session) observe(uid uint64) *pb.Tensor {
	if s.world.payload != nil {
		count(s.world.payload, s.world.steps)
		return s.world.payload
	}
	switch uid {
	case stepsUID:
		return &pb.Tensor{Payload: &pb.Tensor_Int64S{
			Int64S: &pb.Tensor_Int64Array{Array: []int64{int64(s.world.steps)}}}}
	case metadataUID:
		return &pb.Tensor{
			Shape:   []int32{int32(len(s.metadata))},
			Payload: &pb.Tensor_Strings{Strings: &pb.Tensor_StringArray{Array: s.metadata}},
		}
	}
	if tensor := s.acted[uid]; tensor != nil {
		return tensor
	}
	return initial(s.world.specs.Observations[uid])
}

func (s *session) reset(request *pb.ResetRequest) error {
	if err := s.joined(); err != nil {
		return err
	}
	length := s.world.length
	for name, tensor := range request.Settings {
		if name != "length" {
			return noSettings(request.Settings)
		}
		var err error
		if length, err = integer(name, tensor); err != nil {
			return err
		}
	}
	s.world.mutex.Lock()
	defer s.world.mutex.Unlock()
	s.world.length, s.world.running = length, false
	s.world.tell()
	return nil
}

func (s *session) resetWorld(request *pb.ResetWorldRequest) error {
	found, err := s.worlds.find(request.WorldName)
	if err != nil {
		return err
	}
	if err := noSettings(request.Settings); err != nil {
		return err
	}
	found.mutex.Lock()
	if found == s.world || !found.running {
		found.running = false
		found.mutex.Unlock()
		return nil
	}
	if found.told == nil {
		found.told = make(chan struct{})
	}
	told := found.told
	found.mutex.Unlock()
	select {
	case <-told:
	case <-s.context.Done():
	}
	return nil
}
