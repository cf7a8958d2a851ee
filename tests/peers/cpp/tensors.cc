#include "tensors.h"

namespace peer {
namespace {

int64_t Product(const google::protobuf::RepeatedField<int32_t>& shape) {
  int64_t product = 1;
  for (int32_t size : shape) product *= size < 0 ? 1 : size;
  return product;
}

std::string ShapeText(const google::protobuf::RepeatedField<int32_t>& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

[[noreturn]] void Refuse(const std::string& name, const std::string& what) {
  throw RequestError(kInvalidArgument, name + ": " + what);
}

}  // namespace

int64_t ElementCount(const pb::Tensor& tensor) {
  switch (tensor.payload_case()) {
    case pb::Tensor::kFloats: return tensor.floats().array_size();
    case pb::Tensor::kDoubles: return tensor.doubles().array_size();
    case pb::Tensor::kInt8S: return tensor.int8s().array().size();
    case pb::Tensor::kInt32S: return tensor.int32s().array_size();
    case pb::Tensor::kInt64S: return tensor.int64s().array_size();
    case pb::Tensor::kUint8S: return tensor.uint8s().array().size();
    case pb::Tensor::kUint32S: return tensor.uint32s().array_size();
    case pb::Tensor::kUint64S: return tensor.uint64s().array_size();
    case pb::Tensor::kBools: return tensor.bools().array_size();
    case pb::Tensor::kStrings: return tensor.strings().array_size();
    case pb::Tensor::kProtos: return tensor.protos().array_size();
    case pb::Tensor::PAYLOAD_NOT_SET: return 0;
  }
  return 0;
}

void Conform(const pb::TensorSpec& spec, pb::Tensor* tensor) {
  // A DataType has the number of the payload field that carries it.
  if (static_cast<int>(tensor->payload_case()) != static_cast<int>(spec.dtype())) {
    Refuse(spec.name(), "has payload " + std::to_string(tensor->payload_case()) +
                            ", its spec has dtype " + pb::DataType_Name(spec.dtype()));
  }
  auto* shape = tensor->mutable_shape();
  const int64_t count = ElementCount(*tensor);
  const int64_t known = Product(*shape);
  int variable = -1;
  for (int i = 0; i < shape->size(); ++i) {
    if ((*shape)[i] >= 0) continue;
    if (variable >= 0) Refuse(spec.name(), "has two variable lengths: " + ShapeText(*shape));
    variable = i;
  }
  if (variable >= 0) {
    const int64_t length = count == 1 ? 1 : known ? count / known : 0;
    if (count != 1 && length * known != count) {
      Refuse(spec.name(), std::to_string(count) + " elements do not fill " + ShapeText(*shape));
    }
    (*shape)[variable] = static_cast<int32_t>(length);
  } else if (count != 1 && count != known) {
    Refuse(spec.name(), std::to_string(count) + " elements do not fill " + ShapeText(*shape));
  }
  bool fits = shape->size() == spec.shape_size();
  for (int i = 0; fits && i < shape->size(); ++i) {
    fits = spec.shape(i) < 0 || spec.shape(i) == (*shape)[i];
  }
  if (!fits) {
    Refuse(spec.name(), "has shape " + ShapeText(*shape) + ", its spec has " +
                            ShapeText(spec.shape()));
  }
}

pb::Tensor Initial(const pb::TensorSpec& spec) {
  pb::Tensor tensor;
  bool is_empty = false;
  for (int32_t size : spec.shape()) {
    tensor.add_shape(size < 0 ? 0 : size);
    is_empty |= size <= 0;
  }
  switch (spec.dtype()) {
    case pb::FLOAT: tensor.mutable_floats(); if (!is_empty) tensor.mutable_floats()->add_array(0); break;
    case pb::DOUBLE: tensor.mutable_doubles(); if (!is_empty) tensor.mutable_doubles()->add_array(0); break;
    case pb::INT8: tensor.mutable_int8s()->set_array(is_empty ? "" : std::string(1, '\0')); break;
    case pb::INT32: tensor.mutable_int32s(); if (!is_empty) tensor.mutable_int32s()->add_array(0); break;
    case pb::INT64: tensor.mutable_int64s(); if (!is_empty) tensor.mutable_int64s()->add_array(0); break;
    case pb::UINT8: tensor.mutable_uint8s()->set_array(is_empty ? "" : std::string(1, '\0')); break;
    case pb::UINT32: tensor.mutable_uint32s(); if (!is_empty) tensor.mutable_uint32s()->add_array(0); break;
    case pb::UINT64: tensor.mutable_uint64s(); if (!is_empty) tensor.mutable_uint64s()->add_array(0); break;
    case pb::BOOL: tensor.mutable_bools(); if (!is_empty) tensor.mutable_bools()->add_array(false); break;
    case pb::STRING: tensor.mutable_strings(); if (!is_empty) tensor.mutable_strings()->add_array(); break;
    case pb::PROTO: tensor.mutable_protos(); if (!is_empty) tensor.mutable_protos()->add_array(); break;
    default: break;
  }
  return tensor;
}

std::vector<int> ToIntegers(const std::string& name, const pb::Tensor& tensor) {
  if (tensor.has_int32s()) {
    return {tensor.int32s().array().begin(), tensor.int32s().array().end()};
  }
  if (tensor.has_int64s()) {
    return {tensor.int64s().array().begin(), tensor.int64s().array().end()};
  }
  Refuse(name, "is int32 or int64");
}

int64_t ToInteger(const std::string& name, const pb::Tensor& tensor) {
  const std::vector<int> values = ToIntegers(name, tensor);
  if (values.size() != 1 || values[0] < 0) Refuse(name, "is one integer that is not negative");
  return values[0];
}

double ToNumber(const std::string& name, const pb::Tensor& tensor) {
  if (tensor.doubles().array_size() == 1) return tensor.doubles().array(0);
  if (tensor.floats().array_size() == 1) return tensor.floats().array(0);
  return static_cast<double>(ToInteger(name, tensor));
}

std::string ToText(const std::string& name, const pb::Tensor& tensor) {
  if (tensor.strings().array_size() != 1) Refuse(name, "is one string");
  return tensor.strings().array(0);
}

}  // namespace peer
