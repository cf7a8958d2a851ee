#include "payloads.h"

#include <cstring>

namespace peer {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr size_t kCopiedBytes = 16 * 1024;  // Below, one slice is cheaper than two.

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

size_t VarintSize(uint64_t value) {
  size_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

template <typename Number>
void Put(Number value, char* at) {
  std::memcpy(at, &value, sizeof(value));  // Little-endian, as every machine of this test.
}

}  // namespace

std::shared_ptr<Payload> Payload::Make(const std::string& name, int64_t bytes) {
  auto payload = std::make_shared<Payload>();
  pb::TensorSpec& spec = payload->spec_;
  pb::Tensor& tensor = payload->tensor_;
  spec.set_name("payload");
  auto shaped = [&](pb::DataType dtype, std::initializer_list<int64_t> shape) {
    spec.set_dtype(dtype);
    int64_t count = 1;
    for (int64_t size : shape) {
      spec.add_shape(static_cast<int32_t>(size));
      tensor.add_shape(static_cast<int32_t>(size));
      count *= size;
    }
    return count;
  };
  auto fill_bytes = [&](int64_t count) {
    std::string* array = tensor.mutable_uint8s()->mutable_array();
    array->resize(count);
    for (int64_t i = 0; i < count; ++i) (*array)[i] = static_cast<char>(i * 31);
  };
  if (name == "scalar") {
    shaped(pb::FLOAT, {});
    tensor.mutable_floats()->add_array(0);
  } else if (name == "vector") {
    const int64_t count = shaped(pb::DOUBLE, {256});
    for (int64_t i = 0; i < count; ++i) tensor.mutable_doubles()->add_array(i * 0.5);
  } else if (name == "int32") {
    const int64_t count = shaped(pb::INT32, {84, 84});
    for (int64_t i = 0; i < count; ++i) {
      tensor.mutable_int32s()->add_array(static_cast<int32_t>(i * 7919 % 20011) - 10005);
    }
  } else if (name == "uint8") {
    fill_bytes(shaped(pb::UINT8, {84, 84, 4}));
  } else if (name == "float32") {
    const int64_t count = shaped(pb::FLOAT, {84, 84, 4});
    for (int64_t i = 0; i < count; ++i) tensor.mutable_floats()->add_array(i * 0.25f);
  } else if (name == "video") {
    fill_bytes(shaped(pb::UINT8, {1080, 1920, 3}));
  } else if (name == "bytes") {
    if (bytes < 1 || bytes > kMaxBytes) {
      throw RequestError(kInvalidArgument, "bytes: is from 1 to 2**30");
    }
    fill_bytes(shaped(pb::UINT8, {bytes}));
  } else {
    throw RequestError(kInvalidArgument,
                       "payload: '" + name +
                           "' is none of echo, scalar, vector, int32, uint8, float32, video, "
                           "bytes");
  }
  payload->Prepare();
  return payload;
}

pb::Tensor Payload::At(int64_t step) const {
  const int element = static_cast<int>(step % kCounterPeriod);
  pb::Tensor tensor = tensor_;
  switch (spec_.dtype()) {
    case pb::FLOAT: tensor.mutable_floats()->set_array(0, element); break;
    case pb::DOUBLE: tensor.mutable_doubles()->set_array(0, element); break;
    case pb::INT32: tensor.mutable_int32s()->set_array(0, element); break;
    default: (*tensor.mutable_uint8s()->mutable_array())[0] = static_cast<char>(element);
  }
  return tensor;
}

void Payload::Prepare() {
  // With a first element of 0 every dtype has the same size as with any other below 100.
  const std::string tensor = At(0).SerializeAsString();
  switch (spec_.dtype()) {
    case pb::FLOAT: element_size_ = 4; break;
    case pb::DOUBLE: element_size_ = 8; break;
    default: element_size_ = 1;
  }
  std::string entry;  // Of the map of observations: uid 1, and the tensor.
  AppendVarint(1 << 3, &entry);
  AppendVarint(1, &entry);
  AppendVarint(2 << 3 | 2, &entry);
  AppendVarint(tensor.size(), &entry);
  const size_t entry_size = entry.size() + tensor.size();
  const size_t step_size = 2 + 1 + VarintSize(entry_size) + entry_size;
  AppendVarint(3 << 3 | 2, &head_);  // EnvironmentResponse.step
  AppendVarint(step_size, &head_);
  AppendVarint(1 << 3, &head_);  // StepResponse.state
  state_at_ = head_.size();
  AppendVarint(pb::RUNNING, &head_);
  AppendVarint(2 << 3 | 2, &head_);  // StepResponse.observations
  AppendVarint(entry_size, &head_);
  head_ += entry;
  // The payload comes first in a Tensor: its tag and length, then those of its array.
  size_t first = 0;
  for (int number = 0; number < 2; ++number) {
    for (++first; tensor[first] & 0x80; ++first) {
    }
    ++first;
  }
  head_ += tensor.substr(0, first + element_size_);
  tail_ = grpc::Slice(tensor.substr(first + element_size_));
}

grpc::ByteBuffer Payload::Answer(pb::EnvironmentStateType state, int64_t step) const {
  const int element = static_cast<int>(step % kCounterPeriod);
  const bool in_one = tail_.size() <= kCopiedBytes;
  grpc::Slice head(head_.size() + (in_one ? tail_.size() : 0));
  char* out = const_cast<char*>(reinterpret_cast<const char*>(head.begin()));
  std::memcpy(out, head_.data(), head_.size());
  out[state_at_] = static_cast<char>(state);
  char* at = out + head_.size() - element_size_;
  switch (spec_.dtype()) {
    case pb::FLOAT: Put(static_cast<float>(element), at); break;
    case pb::DOUBLE: Put(static_cast<double>(element), at); break;
    default: *at = static_cast<char>(element);
  }
  if (in_one) {
    std::memcpy(out + head_.size(), tail_.begin(), tail_.size());
    return grpc::ByteBuffer(&head, 1);
  }
  const grpc::Slice slices[] = {head, tail_};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace peer
