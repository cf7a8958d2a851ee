package main

import (
	"fmt"

	"google.golang.org/grpc/codes"

	pb "dm_env_rpc/v1"
)

// requestError is a request that is refused: it becomes the error of its answer.
type requestError struct {
	code    codes.Code
	message string
}

func (e requestError) Error() string { return e.message }

func refuse(code codes.Code, format string, arguments ...interface{}) error {
	return requestError{code, fmt.Sprintf(format, arguments...)}
}

// dtypeAndCount returns the dtype that a payload carries and its number of elements.
func dtypeAndCount(tensor *pb.Tensor) (pb.DataType, int) {
	switch payload := tensor.Payload.(type) {
	case *pb.Tensor_Floats:
		return pb.DataType_FLOAT, len(payload.Floats.GetArray())
	case *pb.Tensor_Doubles:
		return pb.DataType_DOUBLE, len(payload.Doubles.GetArray())
	case *pb.Tensor_Int8S:
		return pb.DataType_INT8, len(payload.Int8S.GetArray())
	case *pb.Tensor_Int32S:
		return pb.DataType_INT32, len(payload.Int32S.GetArray())
	case *pb.Tensor_Int64S:
		return pb.DataType_INT64, len(payload.Int64S.GetArray())
	case *pb.Tensor_Uint8S:
		return pb.DataType_UINT8, len(payload.Uint8S.GetArray())
	case *pb.Tensor_Uint32S:
		return pb.DataType_UINT32, len(payload.Uint32S.GetArray())
	case *pb.Tensor_Uint64S:
		return pb.DataType_UINT64, len(payload.Uint64S.GetArray())
	case *pb.Tensor_Bools:
		return pb.DataType_BOOL, len(payload.Bools.GetArray())
	case *pb.Tensor_Strings:
		return pb.DataType_STRING, len(payload.Strings.GetArray())
	case *pb.Tensor_Protos:
		return pb.DataType_PROTO, len(payload.Protos.GetArray())
	}
	return pb.DataType_INVALID_DATA_TYPE, 0
}

// conform checks dtype and shape of a tensor and writes its shape out in full.
func conform(spec *pb.TensorSpec, tensor *pb.Tensor) error {
	dtype, count := dtypeAndCount(tensor)
	if dtype != spec.Dtype {
		return refuse(codes.InvalidArgument, "%s: is %v, its spec %v", spec.Name, dtype, spec.Dtype)
	}
	known, variable := 1, -1
	for axis, size := range tensor.Shape {
		if size >= 0 {
			known *= int(size)
		} else if variable >= 0 {
			return refuse(codes.InvalidArgument, "%s: two variable lengths", spec.Name)
		} else {
			variable = axis
		}
	}
	if variable >= 0 {
		length := 1
		if count != 1 && known > 0 {
			length = count / known
		}
		tensor.Shape[variable] = int32(length)
		known *= length
	}
	if count != 1 && count != known {
		return refuse(codes.InvalidArgument, "%s: %d elements do not fill %v", spec.Name, count,
			tensor.Shape)
	}
	fits := len(tensor.Shape) == len(spec.Shape)
	for axis := 0; fits && axis < len(spec.Shape); axis++ {
		fits = spec.Shape[axis] < 0 || spec.Shape[axis] == tensor.Shape[axis]
	}
	if !fits {
		return refuse(codes.InvalidArgument, "%s: has shape %v, its spec %v", spec.Name,
			tensor.Shape, spec.Shape)
	}
	return nil
}

// initial is what is observed before anybody has acted: one zero for all elements, or none
// where a length is variable.
func initial(spec *pb.TensorSpec) *pb.Tensor {
	tensor := &pb.Tensor{}
	count := 1
	for _, size := range spec.Shape {
		if size <= 0 {
			size, count = 0, 0
		}
		tensor.Shape = append(tensor.Shape, size)
	}
	switch spec.Dtype {
	case pb.DataType_FLOAT:
		tensor.Payload = &pb.Tensor_Floats{Floats: &pb.Tensor_FloatArray{Array: make([]float32, count)}}
	case pb.DataType_DOUBLE:
		tensor.Payload = &pb.Tensor_Doubles{Doubles: &pb.Tensor_DoubleArray{Array: make([]float64, count)}}
	case pb.DataType_INT8:
		tensor.Payload = &pb.Tensor_Int8S{Int8S: &pb.Tensor_Int8Array{Array: make([]byte, count)}}
	case pb.DataType_INT32:
		tensor.Payload = &pb.Tensor_Int32S{Int32S: &pb.Tensor_Int32Array{Array: make([]int32, count)}}
	case pb.DataType_INT64:
		tensor.Payload = &pb.Tensor_Int64S{Int64S: &pb.Tensor_Int64Array{Array: make([]int64, count)}}
	case pb.DataType_UINT8:
		tensor.Payload = &pb.Tensor_Uint8S{Uint8S: &pb.Tensor_Uint8Array{Array: make([]byte, count)}}
	case pb.DataType_UINT32:
		tensor.Payload = &pb.Tensor_Uint32S{Uint32S: &pb.Tensor_Uint32Array{Array: make([]uint32, count)}}
	case pb.DataType_UINT64:
		tensor.Payload = &pb.Tensor_Uint64S{Uint64S: &pb.Tensor_Uint64Array{Array: make([]uint64, count)}}
	case pb.DataType_BOOL:
		tensor.Payload = &pb.Tensor_Bools{Bools: &pb.Tensor_BoolArray{Array: make([]bool, count)}}
	case pb.DataType_STRING:
		tensor.Payload = &pb.Tensor_Strings{Strings: &pb.Tensor_StringArray{Array: make([]string, count)}}
	case pb.DataType_PROTO:
		tensor.Payload = &pb.Tensor_Protos{Protos: &pb.Tensor_ProtoArray{Array: emptyMessages(count)}}
	}
	return tensor
}

// integers is the value of a setting.
func integers(name string, tensor *pb.Tensor) ([]int32, error) {
	switch payload := tensor.Payload.(type) {
	case *pb.Tensor_Int32S:
		return payload.Int32S.GetArray(), nil
	case *pb.Tensor_Int64S:
		values := []int32{}
		for _, value := range payload.Int64S.GetArray() {
			values = append(values, int32(value))
		}
		return values, nil
	}
	return nil, refuse(codes.InvalidArgument, "%s: is int32 or int64", name)
}

func integer(name string, tensor *pb.Tensor) (int, error) {
	values, err := integers(name, tensor)
	if err != nil {
		return 0, err
	}
	if len(values) != 1 || values[0] < 0 {
		return 0, refuse(codes.InvalidArgument, "%s: is one integer that is not negative", name)
	}
	return int(values[0]), nil
}

func number(name string, tensor *pb.Tensor) (float64, error) {
	if doubles := tensor.GetDoubles().GetArray(); len(doubles) == 1 {
		return doubles[0], nil
	}
	if floats := tensor.GetFloats().GetArray(); len(floats) == 1 {
		return float64(floats[0]), nil
	}
	value, err := integer(name, tensor)
	return float64(value), err
}

func text(name string, tensor *pb.Tensor) (string, error) {
	strings := tensor.GetStrings().GetArray()
	if len(strings) != 1 {
		return "", refuse(codes.InvalidArgument, "%s: is one string", name)
	}
	return strings[0], nil
}
