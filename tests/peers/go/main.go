// A dm_env_rpc server on grpc-go; for its environment see tests/peers.
//
//	server [--address 127.0.0.1:0] [--certificate FILE --key FILE]
//
// It prints its address and ends, gracefully, when stdin does.
package main

import (
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"io/ioutil"
	"log"
	"math"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	pb "dm_env_rpc/v1"
)

const gracePeriod = 500 * time.Millisecond

type service struct{ worlds *worlds }

func (s *service) Process(stream pb.Environment_ProcessServer) error {
	agent := &session{worlds: s.worlds, context: stream.Context()}
	defer agent.leave()
	received, _ := metadata.FromIncomingContext(stream.Context())
	for key, values := range received {
		for _, value := range values {
			if strings.HasSuffix(key, "-bin") {
				value = hex.EncodeToString([]byte(value))
			}
			agent.metadata = append(agent.metadata, key+"="+value)
		}
	}
	for {
		request, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(agent.answer(request)); err != nil {
			return err
		}
	}
}

func (s *session) answer(request *pb.EnvironmentRequest) *pb.EnvironmentResponse {
	response := &pb.EnvironmentResponse{}
	if err := s.carryOut(request, response); err != nil {
		code := codes.Internal
		if refused, ok := err.(requestError); ok {
			code = refused.code
		}
		response.Payload = &pb.EnvironmentResponse_Error{
			Error: &status.Status{Code: int32(code), Message: err.Error()}}
	}
	return response
}

func (s *session) carryOut(request *pb.EnvironmentRequest, response *pb.EnvironmentResponse) error {
	switch payload := request.Payload.(type) {
	case *pb.EnvironmentRequest_CreateWorld:
		name, err := s.worlds.create(payload.CreateWorld.Settings)
		response.Payload = &pb.EnvironmentResponse_CreateWorld{
			CreateWorld: &pb.CreateWorldResponse{WorldName: name}}
		return err
	case *pb.EnvironmentRequest_JoinWorld:
		if err := s.join(payload.JoinWorld); err != nil {
			return err
		}
		response.Payload = &pb.EnvironmentResponse_JoinWorld{
			JoinWorld: &pb.JoinWorldResponse{Specs: s.world.specs}}
		return nil
	case *pb.EnvironmentRequest_Step:
		stepped, err := s.step(payload.Step)
		response.Payload = &pb.EnvironmentResponse_Step{Step: stepped}
		return err
	case *pb.EnvironmentRequest_Reset_:
		if err := s.reset(payload.Reset_); err != nil {
			return err
		}
		response.Payload = &pb.EnvironmentResponse_Reset_{
			Reset_: &pb.ResetResponse{Specs: s.world.specs}}
		return nil
	case *pb.EnvironmentRequest_ResetWorld:
		response.Payload = &pb.EnvironmentResponse_ResetWorld{ResetWorld: &pb.ResetWorldResponse{}}
		return s.resetWorld(payload.ResetWorld)
	case *pb.EnvironmentRequest_LeaveWorld:
		s.leave()
		response.Payload = &pb.EnvironmentResponse_LeaveWorld{LeaveWorld: &pb.LeaveWorldResponse{}}
		return nil
	case *pb.EnvironmentRequest_DestroyWorld:
		response.Payload = &pb.EnvironmentResponse_DestroyWorld{
			DestroyWorld: &pb.DestroyWorldResponse{}}
		return s.worlds.destroy(payload.DestroyWorld.WorldName)
	case *pb.EnvironmentRequest_Extension:
		return refuse(codes.Unimplemented, "no extension %q", payload.Extension.TypeUrl)
	}
	return refuse(codes.InvalidArgument, "the request is empty")
}

func main() {
	address := flag.String("address", "127.0.0.1:0", "host:port, or unix:path")
	certificate := flag.String("certificate", "", "a PEM file, for TLS")
	key := flag.String("key", "", "a PEM file")
	flag.Parse()
	network, where := "tcp", *address
	if strings.HasPrefix(where, "unix:") {
		network, where = "unix", strings.TrimPrefix(where, "unix:")
	}
	listener, err := net.Listen(network, where)
	if err != nil {
		log.Fatal(err)
	}
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
	}
	if *certificate != "" {
		tls, err := credentials.NewServerTLSFromFile(*certificate, *key)
		if err != nil {
			log.Fatal(err)
		}
		options = append(options, grpc.Creds(tls))
	}
	server := grpc.NewServer(options...)
	pb.RegisterEnvironmentServer(server, &service{&worlds{byName: map[string]*world{}}})
	if network == "unix" {
		fmt.Println(*address)
	} else {
		fmt.Println(listener.Addr())
	}
	go func() {
		_, _ = io.Copy(ioutil.Discard, os.Stdin)
		time.AfterFunc(gracePeriod, server.Stop)
		server.GracefulStop()
	}()
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
