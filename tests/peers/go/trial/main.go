// A gRPC client that tries a server whose environment echoes bytes; see tests/peers.
//
//	trial ADDRESS BYTES
//
// It prints what it saw as one line of JSON, and exits with 1 where an answer is wrong.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "dm_env_rpc/v1"
)

const (
	streams = 16
	steps   = 50
)

type call struct {
	stream pb.Environment_ProcessClient
	cancel context.CancelFunc
}

func open(client pb.EnvironmentClient, timeout time.Duration) *call {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	stream, err := client.Process(ctx)
	if err != nil {
		log.Fatal(err)
	}
	return &call{stream, cancel}
}

func (c *call) ask(request *pb.EnvironmentRequest) *pb.EnvironmentResponse {
	if err := c.stream.Send(request); err != nil {
		log.Fatal(err)
	}
	response, err := c.stream.Recv()
	if err != nil {
		log.Fatal(err)
	}
	return response
}

func (c *call) create() string {
	response := c.ask(&pb.EnvironmentRequest{Payload: &pb.EnvironmentRequest_CreateWorld{
		CreateWorld: &pb.CreateWorldRequest{}}})
	return response.GetCreateWorld().WorldName
}

// Returns whether the world had no other agent.
func (c *call) join(world string) bool {
	response := c.ask(&pb.EnvironmentRequest{Payload: &pb.EnvironmentRequest_JoinWorld{
		JoinWorld: &pb.JoinWorldRequest{WorldName: world}}})
	return response.GetJoinWorld() != nil
}

func (c *call) begin() {
	response := c.ask(&pb.EnvironmentRequest{Payload: &pb.EnvironmentRequest_Step{
		Step: &pb.StepRequest{}}})
	if response.GetStep().GetState() != pb.EnvironmentStateType_RUNNING {
		log.Fatal("the sequence has not begun")
	}
}

func (c *call) step(content []byte) {
	action := &pb.Tensor{
		Payload: &pb.Tensor_Uint8S{Uint8S: &pb.Tensor_Uint8Array{Array: content}},
		Shape:   []int32{int32(len(content))},
	}
	response := c.ask(&pb.EnvironmentRequest{Payload: &pb.EnvironmentRequest_Step{
		Step: &pb.StepRequest{
			Actions:               map[uint64]*pb.Tensor{1: action},
			RequestedObservations: []uint64{1},
		}}})
	echoed := response.GetStep().GetObservations()[1].GetUint8S().GetArray()
	if !bytes.Equal(echoed, content) {
		log.Fatalf("not the same bytes: %v", response.GetError())
	}
}

// Ends the requests, and waits for the status OK.
func (c *call) end() {
	if err := c.stream.CloseSend(); err != nil {
		log.Fatal(err)
	}
	if _, err := c.stream.Recv(); err != io.EOF {
		log.Fatal(err)
	}
	c.cancel()
}

func play(client pb.EnvironmentClient, number int) {
	call := open(client, time.Minute)
	call.join(call.create())
	call.begin()
	for step := 0; step < steps; step++ {
		call.step(bytes.Repeat([]byte{byte(number*steps + step)}, 5))
	}
	call.end()
}

func main() {
	size, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	channel, err := grpc.Dial(os.Args[1], grpc.WithInsecure(), grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		log.Fatal(err)
	}
	client := pb.NewEnvironmentClient(channel)

	large := open(client, time.Minute)
	world := large.create()
	large.join(world)
	large.begin()
	content := make([]byte, size)
	for index := range content {
		content[index] = byte(index % 251)
	}
	large.step(content)
	large.cancel()
	if _, err := large.stream.Recv(); status.Code(err) != codes.Canceled {
		log.Fatal(err)
	}
	// The server has to notice that first.
	next := open(client, time.Minute)
	for !next.join(world) {
		time.Sleep(10 * time.Millisecond)
	}
	next.end()

	_, err = open(client, 300*time.Millisecond).stream.Recv()
	late := status.Code(err)

	var group sync.WaitGroup
	for number := 0; number < streams; number++ {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			play(client, number)
		}(number)
	}
	group.Wait()
	fmt.Printf("{\"bytes\": %d, \"late\": %d, \"steps\": %d}\n", size, late, streams*steps)
}
