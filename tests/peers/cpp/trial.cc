// A gRPC client that tries a server whose environment echoes bytes; see tests/peers.
//
//   trial ADDRESS BYTES
//
// It prints what it saw as one line of JSON, and exits with 1 where an answer is wrong.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dm_env_rpc/v1/dm_env_rpc.grpc.pb.h"

namespace {

namespace pb = dm_env_rpc::v1;
using Stream = grpc::ClientReaderWriter<pb::EnvironmentRequest, pb::EnvironmentResponse>;

constexpr int kStreams = 16;
constexpr int kSteps = 50;

[[noreturn]] void Fail(const std::string& why) {
  std::cerr << why << std::endl;
  std::exit(1);
}

// A stream of its own.
class Call {
 public:
  explicit Call(pb::Environment::Stub* stub, int milliseconds = 0) {
    context_.set_wait_for_ready(true);
    if (milliseconds) {
      context_.set_deadline(std::chrono::system_clock::now() +
                            std::chrono::milliseconds(milliseconds));
    }
    stream_ = stub->Process(&context_);
  }

  pb::EnvironmentResponse Ask(const pb::EnvironmentRequest& request) {
    pb::EnvironmentResponse response;
    if (!stream_->Write(request) || !stream_->Read(&response)) {
      Fail("the stream has ended: " + stream_->Finish().error_message());
    }
    return response;
  }

  std::string Create() {
    pb::EnvironmentRequest request;
    request.mutable_create_world();
    return Ask(request).create_world().world_name();
  }

  // Returns whether the world had no other agent.
  bool Join(const std::string& world) {
    pb::EnvironmentRequest request;
    request.mutable_join_world()->set_world_name(world);
    return Ask(request).has_join_world();
  }

  void Step(const std::string& bytes) {
    pb::EnvironmentRequest request;
    pb::Tensor& action = (*request.mutable_step()->mutable_actions())[1];
    action.mutable_uint8s()->set_array(bytes);
    action.add_shape(static_cast<int>(bytes.size()));
    request.mutable_step()->add_requested_observations(1);
    const auto response = Ask(request);
    if (response.has_error()) Fail(response.error().message());
    if (response.step().observations().at(1).uint8s().array() != bytes) Fail("not the same bytes");
  }

  void Begin() {
    pb::EnvironmentRequest request;
    request.mutable_step();
    if (Ask(request).step().state() != pb::RUNNING) Fail("the sequence has not begun");
  }

  void Cancel() {
    context_.TryCancel();
    if (stream_->Finish().error_code() != grpc::StatusCode::CANCELLED) Fail("not cancelled");
  }

  // Ends the requests, and returns the status.
  grpc::Status End() {
    stream_->WritesDone();
    return Ended();
  }

  grpc::Status Ended() {
    pb::EnvironmentResponse response;
    while (stream_->Read(&response)) {
    }
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
};

// Joins the world of a stream that was cancelled; the server has to notice that first.
void Rejoin(pb::Environment::Stub* stub, const std::string& world) {
  Call call(stub);
  while (!call.Join(world)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (!call.End().ok()) Fail("the stream failed");
}

void Play(pb::Environment::Stub* stub, int number, std::atomic<int>* steps) {
  Call call(stub);
  call.Join(call.Create());
  call.Begin();
  for (int step = 0; step < kSteps; ++step, ++*steps) {
    call.Step(std::string(5, static_cast<char>(number * kSteps + step)));
  }
  if (!call.End().ok()) Fail("the stream failed");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) Fail("usage: trial ADDRESS BYTES");
  const size_t size = std::atoll(argv[2]);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), arguments);
  const auto stub = pb::Environment::NewStub(channel);

  Call large(stub.get());
  const std::string world = large.Create();
  large.Join(world);
  large.Begin();
  std::string bytes(size, 0);
  for (size_t index = 0; index < size; ++index) bytes[index] = static_cast<char>(index % 251);
  large.Step(bytes);
  large.Cancel();
  Rejoin(stub.get(), world);

  Call late(stub.get(), 300);
  const int late_code = late.Ended().error_code();

  std::atomic<int> steps{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kStreams; ++number) {
    threads.emplace_back(Play, stub.get(), number, &steps);
  }
  for (auto& thread : threads) thread.join();
  std::printf("{\"bytes\": %zu, \"late\": %d, \"steps\": %d}\n", size, late_code, steps.load());
}
