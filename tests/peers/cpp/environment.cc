#include "environment.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <chrono>
#include <thread>

namespace peer {
namespace {

using Settings = google::protobuf::Map<std::string, pb::Tensor>;

constexpr uint64_t kPayload = 1;
constexpr uint64_t kSteps = 12;
constexpr uint64_t kMetadata = 13;
constexpr double kMaxDelay = 60.0;

// Echoed, each under the number of its DataType.
const char* const kDtypes[] = {"float",  "double", "int8", "int32",  "int64", "uint8",
                               "uint32", "uint64", "bool", "string", "proto"};

pb::TensorSpec Spec(const std::string& name, pb::DataType dtype, const std::vector<int>& shape) {
  pb::TensorSpec spec;
  spec.set_name(name);
  spec.set_dtype(dtype);
  for (int size : shape) spec.add_shape(size);
  return spec;
}

pb::ActionObservationSpecs EchoSpecs(const std::vector<int>& shape) {
  pb::ActionObservationSpecs specs;
  for (int number = pb::FLOAT; number <= pb::PROTO; ++number) {
    const auto spec = Spec(kDtypes[number - 1], static_cast<pb::DataType>(number), shape);
    (*specs.mutable_actions())[number] = spec;
    (*specs.mutable_observations())[number] = spec;
  }
  (*specs.mutable_observations())[kSteps] = Spec("steps", pb::INT64, {});
  (*specs.mutable_observations())[kMetadata] = Spec("metadata", pb::STRING, {-1});
  return specs;
}

[[noreturn]] void RefuseSetting(const std::string& name) {
  throw RequestError(kInvalidArgument, "no setting '" + name + "' here");
}

}  // namespace

std::string Worlds::Create(const Settings& settings) {
  auto world = std::make_shared<World>();
  std::string payload = "echo";
  int64_t bytes = 0;
  std::vector<int> shape = {-1};
  for (const auto& [name, tensor] : settings) {
    if (name == "payload") {
      payload = ToText(name, tensor);
    } else if (name == "bytes") {
      bytes = ToInteger(name, tensor);
    } else if (name == "shape") {
      shape = ToIntegers(name, tensor);
    } else if (name == "length") {
      world->length = ToInteger(name, tensor);
    } else if (name == "delay") {
      world->delay = ToNumber(name, tensor);
      if (!(world->delay >= 0 && world->delay <= kMaxDelay)) {
        throw RequestError(kInvalidArgument, "delay: is from 0 to 60 seconds");
      }
    } else {
      RefuseSetting(name);
    }
  }
  if (payload == "echo") {
    world->specs = EchoSpecs(shape);
  } else {
    world->payload = Payload::Make(payload, bytes);
    (*world->specs.mutable_actions())[1] = Spec("action", pb::INT32, {});
    (*world->specs.mutable_observations())[kPayload] = world->payload->spec();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  world->name = "world-" + std::to_string(created_++);
  worlds_[world->name] = world;
  return world->name;
}

std::shared_ptr<World> Worlds::Find(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = worlds_.find(name);
  if (found == worlds_.end()) throw RequestError(kNotFound, "no world '" + name + "'");
  return found->second;
}

void Worlds::Destroy(const std::string& name) {
  const auto world = Find(name);
  std::lock_guard<std::mutex> lock(world->mutex);
  if (world->has_agent) {
    throw RequestError(kFailedPrecondition, "world '" + name + "' has an agent");
  }
  std::lock_guard<std::mutex> all(mutex_);
  worlds_.erase(name);
}

grpc::ByteBuffer Session::Answer(const pb::EnvironmentRequest& request) {
  pb::EnvironmentResponse response;
  try {
    if (request.has_step() && world_ && world_->payload) {
      const auto& requested = request.step().requested_observations();
      if (requested.size() == 1 && requested[0] == kPayload) {
        const auto state = Step(request.step());
        return world_->payload->Answer(state, world_->steps);
      }
    }
    CarryOut(request, &response);
  } catch (const RequestError& error) {
    response.mutable_error()->set_code(error.code);
    response.mutable_error()->set_message(error.what());
  }
  grpc::ByteBuffer buffer;
  bool own;
  grpc::SerializationTraits<pb::EnvironmentResponse>::Serialize(response, &buffer, &own);
  return buffer;
}

void Session::CarryOut(const pb::EnvironmentRequest& request, pb::EnvironmentResponse* response) {
  switch (request.payload_case()) {
    case pb::EnvironmentRequest::kCreateWorld:
      response->mutable_create_world()->set_world_name(
          worlds_->Create(request.create_world().settings()));
      return;
    case pb::EnvironmentRequest::kJoinWorld:
      Join(request.join_world());
      *response->mutable_join_world()->mutable_specs() = world_->specs;
      return;
    case pb::EnvironmentRequest::kStep: {
      const auto state = Step(request.step());
      response->mutable_step()->set_state(state);
      auto* observations = response->mutable_step()->mutable_observations();
      for (uint64_t uid : request.step().requested_observations()) {
        (*observations)[uid] = Observe(uid);
      }
      return;
    }
    case pb::EnvironmentRequest::kReset:
      Reset(request.reset());
      *response->mutable_reset()->mutable_specs() = world_->specs;
      return;
    case pb::EnvironmentRequest::kResetWorld:
      ResetWorld(request.reset_world());
      response->mutable_reset_world();
      return;
    case pb::EnvironmentRequest::kLeaveWorld:
      Leave();
      response->mutable_leave_world();
      return;
    case pb::EnvironmentRequest::kDestroyWorld:
      worlds_->Destroy(request.destroy_world().world_name());
      response->mutable_destroy_world();
      return;
    case pb::EnvironmentRequest::kExtension:
      throw RequestError(kUnimplemented,
                         "no extension '" + request.extension().type_url() + "'");
    case pb::EnvironmentRequest::PAYLOAD_NOT_SET:
      throw RequestError(kInvalidArgument, "the request is empty");
  }
}

void Session::Join(const pb::JoinWorldRequest& request) {
  if (world_) throw RequestError(kFailedPrecondition, "joined to '" + world_->name + "' already");
  const auto world = worlds_->Find(request.world_name());
  for (const auto& [name, tensor] : request.settings()) RefuseSetting(name);
  std::lock_guard<std::mutex> lock(world->mutex);
  if (world->has_agent) throw RequestError(kFailedPrecondition, "the world has its agent");
  world->has_agent = true;
  world->is_running = false;
  world->steps = 0;
  world_ = world;
}

void Session::Leave() {
  if (!world_) return;
  {
    std::lock_guard<std::mutex> lock(world_->mutex);
    world_->has_agent = world_->is_running = world_->is_interrupted = false;
    world_->changed.notify_all();
  }
  world_ = nullptr;
  acted_.clear();
}

World& Session::Joined() {
  if (!world_) throw RequestError(kFailedPrecondition, "not joined to a world");
  return *world_;
}

pb::EnvironmentStateType Session::Step(const pb::StepRequest& request) {
  World& world = Joined();
  for (uint64_t uid : request.requested_observations()) {
    if (!world.specs.observations().contains(uid)) {
      throw RequestError(kInvalidArgument, "no observation " + std::to_string(uid));
    }
  }
  if (world.delay > 0) std::this_thread::sleep_for(std::chrono::duration<double>(world.delay));
  std::lock_guard<std::mutex> lock(world.mutex);
  if (world.is_interrupted) {
    world.is_interrupted = world.is_running = false;
    world.changed.notify_all();
    return pb::INTERRUPTED;
  }
  if (!world.is_running) {
    world.is_running = true;
    world.steps = 0;
    acted_.clear();
    return pb::RUNNING;
  }
  Act(request);
  ++world.steps;
  if (world.steps != world.length) return pb::RUNNING;
  world.is_running = false;
  return pb::TERMINATED;
}

void Session::Act(const pb::StepRequest& request) {
  std::map<uint64_t, pb::Tensor> acted;
  for (const auto& [uid, tensor] : request.actions()) {
    const auto spec = world_->specs.actions().find(uid);
    if (spec == world_->specs.actions().end()) {
      throw RequestError(kInvalidArgument, "no action " + std::to_string(uid));
    }
    pb::Tensor& action = acted[uid] = tensor;
    Conform(spec->second, &action);
  }
  if (world_->payload) return;
  for (auto& [uid, action] : acted) acted_[uid] = std::move(action);
}

pb::Tensor Session::Observe(uint64_t uid) {
  pb::Tensor tensor;
  if (world_->payload) return world_->payload->At(world_->steps);
  if (uid == kSteps) {
    tensor.mutable_int64s()->add_array(world_->steps);
    return tensor;
  }
  if (uid == kMetadata) {
    for (const std::string& pair : metadata_) tensor.mutable_strings()->add_array(pair);
    tensor.add_shape(static_cast<int>(metadata_.size()));
    return tensor;
  }
  const auto acted = acted_.find(uid);
  return acted != acted_.end() ? acted->second : Initial(world_->specs.actions().at(uid));
}

void Session::Reset(const pb::ResetRequest& request) {
  World& world = Joined();
  int64_t length = world.length;
  for (const auto& [name, tensor] : request.settings()) {
    if (name != "length") RefuseSetting(name);
    length = ToInteger(name, tensor);
  }
  std::lock_guard<std::mutex> lock(world.mutex);
  world.length = length;
  world.is_running = world.is_interrupted = false;
  world.changed.notify_all();
}

void Session::ResetWorld(const pb::ResetWorldRequest& request) {
  const auto world = worlds_->Find(request.world_name());
  for (const auto& [name, tensor] : request.settings()) RefuseSetting(name);
  std::unique_lock<std::mutex> lock(world->mutex);
  if (world == world_ || !world->is_running) {
    world->is_running = false;
    return;
  }
  world->is_interrupted = true;
  while (world->is_interrupted && !is_cancelled_()) {
    world->changed.wait_for(lock, std::chrono::milliseconds(100));
  }
}

}  // namespace peer
