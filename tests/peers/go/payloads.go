package main

import (
	"github.com/golang/protobuf/ptypes/any"
	"google.golang.org/grpc/codes"

	pb "dm_env_rpc/v1"
)

const (
	counterPeriod = 100
	maxBytes      = 1 << 30
)

func emptyMessages(count int) []*any.Any {
	messages := make([]*any.Any, count)
	for i := range messages {
		messages[i] = &any.Any{}
	}
	return messages
}

func pattern(count int) *pb.Tensor_Uint8S {
	array := make([]byte, count)
	for i := range array {
		array[i] = byte(i * 31)
	}
	return &pb.Tensor_Uint8S{Uint8S: &pb.Tensor_Uint8Array{Array: array}}
}

// makePayload fills what a world observes; see the environment's description.
func makePayload(name string, bytes int) (*pb.TensorSpec, *pb.Tensor, error) {
	spec, tensor := &pb.TensorSpec{Name: "payload"}, &pb.Tensor{}
	switch name {
	case "scalar":
		spec.Dtype = pb.DataType_FLOAT
		tensor.Payload = &pb.Tensor_Floats{Floats: &pb.Tensor_FloatArray{Array: []float32{0}}}
	case "vector":
		spec.Dtype, spec.Shape = pb.DataType_DOUBLE, []int32{256}
		array := make([]float64, 256)
		for i := range array {
			array[i] = float64(i) * 0.5
		}
		tensor.Payload = &pb.Tensor_Doubles{Doubles: &pb.Tensor_DoubleArray{Array: array}}
	case "int32":
		spec.Dtype, spec.Shape = pb.DataType_INT32, []int32{84, 84}
		array := make([]int32, 84*84)
		for i := range array {
			array[i] = int32(i*7919%20011 - 10005)
		}
		tensor.Payload = &pb.Tensor_Int32S{Int32S: &pb.Tensor_Int32Array{Array: array}}
	case "uint8":
		spec.Dtype, spec.Shape = pb.DataType_UINT8, []int32{84, 84, 4}
		tensor.Payload = pattern(84 * 84 * 4)
	case "float32":
		spec.Dtype, spec.Shape = pb.DataType_FLOAT, []int32{84, 84, 4}
		array := make([]float32, 84*84*4)
		for i := range array {
			array[i] = float32(i) * 0.25
		}
		tensor.Payload = &pb.Tensor_Floats{Floats: &pb.Tensor_FloatArray{Array: array}}
	case "video":
		spec.Dtype, spec.Shape = pb.DataType_UINT8, []int32{1080, 1920, 3}
		tensor.Payload = pattern(1080 * 1920 * 3)
	case "bytes":
		if bytes < 1 || bytes > maxBytes {
			return nil, nil, refuse(codes.InvalidArgument, "bytes: is from 1 to 2**30")
		}
		spec.Dtype, spec.Shape = pb.DataType_UINT8, []int32{int32(bytes)}
		tensor.Payload = pattern(bytes)
	default:
		return nil, nil, refuse(codes.InvalidArgument, "payload: there is no %q", name)
	}
	tensor.Shape = spec.Shape
	return spec, tensor, nil
}

// count writes the number of the step into the first element.
func count(tensor *pb.Tensor, step int) {
	element := step % counterPeriod
	switch payload := tensor.Payload.(type) {
	case *pb.Tensor_Floats:
		payload.Floats.Array[0] = float32(element)
	case *pb.Tensor_Doubles:
		payload.Doubles.Array[0] = float64(element)
	case *pb.Tensor_Int32S:
		payload.Int32S.Array[0] = int32(element)
	case *pb.Tensor_Uint8S:
		payload.Uint8S.Array[0] = byte(element)
	}
}
