// The environment of the peers: worlds, and the part of one connection in them.
//
// A world takes one agent at a time. Settings of CreateWorld: `payload` (see Payload, or
// `echo`, the default, whose actions of every dtype are observed again), `bytes` (of the
// payload of that name), `shape` (of what is echoed), `length` (steps of a sequence, 0 for
// no end), `delay` (seconds of each step). Of Reset: `length`.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "payloads.h"

namespace peer {

struct World {
  std::string name;
  pb::ActionObservationSpecs specs;
  std::shared_ptr<Payload> payload;  // None where the world echoes.
  int64_t length = 0;
  double delay = 0.0;

  std::mutex mutex;
  std::condition_variable changed;
  bool has_agent = false;
  bool is_running = false;
  bool is_interrupted = false;
  int64_t steps = 0;
};

class Worlds {
 public:
  std::string Create(const google::protobuf::Map<std::string, pb::Tensor>& settings);
  std::shared_ptr<World> Find(const std::string& name);
  void Destroy(const std::string& name);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<World>> worlds_;
  int64_t created_ = 0;
};

class Session {
 public:
  // Args: the worlds of the server, the metadata of the call as `key=value` in order, and
  // what tells whether the client has gone.
  Session(Worlds* worlds, std::vector<std::string> metadata, std::function<bool()> is_cancelled)
      : worlds_(worlds), metadata_(std::move(metadata)), is_cancelled_(std::move(is_cancelled)) {}
  ~Session() { Leave(); }

  // The one answer to a request, serialized.
  grpc::ByteBuffer Answer(const pb::EnvironmentRequest& request);

 private:
  void CarryOut(const pb::EnvironmentRequest& request, pb::EnvironmentResponse* response);
  void Join(const pb::JoinWorldRequest& request);
  void Leave();
  // Returns the state; the world's steps are counted.
  pb::EnvironmentStateType Step(const pb::StepRequest& request);
  void Act(const pb::StepRequest& request);
  pb::Tensor Observe(uint64_t uid);
  void Reset(const pb::ResetRequest& request);
  void ResetWorld(const pb::ResetWorldRequest& request);
  World& Joined();

  Worlds* worlds_;
  std::vector<std::string> metadata_;
  std::function<bool()> is_cancelled_;
  std::shared_ptr<World> world_;
  std::map<uint64_t, pb::Tensor> acted_;
};

}  // namespace peer
