// Tensors against their specs: dtypes, shapes, numbers of elements.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "dm_env_rpc/v1/dm_env_rpc.pb.h"

namespace peer {

namespace pb = dm_env_rpc::v1;

// google.rpc.Code; the values that are used here.
enum Code { kInvalidArgument = 3, kNotFound = 5, kFailedPrecondition = 9, kUnimplemented = 12 };

// A request that is refused: becomes the `error` of its answer.
struct RequestError : std::runtime_error {
  RequestError(Code code, const std::string& message)
      : std::runtime_error(message), code(code) {}
  Code code;
};

// The number of elements of the payload, whatever its dtype.
int64_t ElementCount(const pb::Tensor& tensor);

// Checks dtype and shape of a tensor and writes the shape out in full: a negative length
// follows from the number of elements, a single element stands for any shape.
void Conform(const pb::TensorSpec& spec, pb::Tensor* tensor);

// The tensor that stands for a spec before anybody has acted: one zero for all elements,
// or none where a length is variable.
pb::Tensor Initial(const pb::TensorSpec& spec);

// Settings: the value of a tensor with one element, or with a row of them.
int64_t ToInteger(const std::string& name, const pb::Tensor& tensor);
double ToNumber(const std::string& name, const pb::Tensor& tensor);
std::string ToText(const std::string& name, const pb::Tensor& tensor);
std::vector<int> ToIntegers(const std::string& name, const pb::Tensor& tensor);

}  // namespace peer
