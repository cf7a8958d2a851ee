// What the environment observes: filled once, with a first element that tells the step.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "tensors.h"

namespace peer {

constexpr int kCounterPeriod = 100;

// An observation in two forms: a Tensor, and a serialized EnvironmentResponse of which only
// the state and the first element change from step to step.
class Payload {
 public:
  // Args: one of scalar, vector, int32, uint8, float32, video; or bytes and how many.
  // Raises: RequestError for any other.
  static std::shared_ptr<Payload> Make(const std::string& name, int64_t bytes);

  const pb::TensorSpec& spec() const { return spec_; }
  pb::Tensor At(int64_t step) const;

  // The answer to a step that asked for this observation and no other. Large arrays are
  // referred to, not copied.
  grpc::ByteBuffer Answer(pb::EnvironmentStateType state, int64_t step) const;

 private:
  void Prepare();

  pb::TensorSpec spec_;
  pb::Tensor tensor_;
  std::string head_;  // Up to and including the first element.
  size_t state_at_ = 0;
  size_t element_size_ = 0;
  grpc::Slice tail_;
};

}  // namespace peer
