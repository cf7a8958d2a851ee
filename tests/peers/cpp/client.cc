// A bare gRPC client in C++: what a step takes where nothing but gRPC and protobuf is in the
// way. It stands by, and measures what it is told to, so that it can take turns with others.
//
//   client ADDRESS PAYLOAD BYTES
//
// For each line `DEPTH COUNT` on stdin it takes COUNT steps with DEPTH of them in flight and
// prints their times as one line of JSON: `seconds` of the whole, `p10`, `p50` and `p90` of a
// step in seconds (from its being written to its being parsed).

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <string>
#include <vector>

#include "dm_env_rpc/v1/dm_env_rpc.grpc.pb.h"

namespace {

namespace pb = dm_env_rpc::v1;
using Clock = std::chrono::steady_clock;
using Stream = grpc::ClientReaderWriter<pb::EnvironmentRequest, pb::EnvironmentResponse>;

[[noreturn]] void Fail(const std::string& why) {
  std::cerr << why << std::endl;
  std::exit(1);
}

void Write(Stream* stream, const pb::EnvironmentRequest& request) {
  if (!stream->Write(request)) Fail("the stream has ended");
}

void Read(Stream* stream, pb::EnvironmentResponse* response) {
  if (!stream->Read(response)) Fail("the stream has ended");
  if (response->has_error()) Fail(response->error().message());
}

void CreateAndJoin(Stream* stream, const std::string& payload, int64_t bytes) {
  pb::EnvironmentRequest request;
  pb::EnvironmentResponse response;
  auto& settings = *request.mutable_create_world()->mutable_settings();
  settings["payload"].mutable_strings()->add_array(payload);
  settings["bytes"].mutable_int64s()->add_array(bytes);
  Write(stream, request);
  Read(stream, &response);
  request.mutable_join_world()->set_world_name(response.create_world().world_name());
  Write(stream, request);
  Read(stream, &response);
}

void Measure(Stream* stream, int depth, int count) {
  pb::EnvironmentRequest request;
  auto* step = request.mutable_step();
  (*step->mutable_actions())[1].mutable_int32s()->add_array(1);
  step->add_requested_observations(1);
  pb::EnvironmentResponse response;
  std::deque<Clock::time_point> written;
  std::vector<double> seconds;
  seconds.reserve(count);
  const auto begin = Clock::now();
  for (int sent = 0; static_cast<int>(seconds.size()) < count;) {
    while (sent < count && static_cast<int>(written.size()) < depth) {
      written.push_back(Clock::now());
      Write(stream, request);
      ++sent;
    }
    Read(stream, &response);
    if (!response.step().observations().contains(1)) Fail("no observation in the answer");
    seconds.push_back(std::chrono::duration<double>(Clock::now() - written.front()).count());
    written.pop_front();
  }
  const double whole = std::chrono::duration<double>(Clock::now() - begin).count();
  std::sort(seconds.begin(), seconds.end());
  auto percentile = [&](double part) {
    return seconds[static_cast<size_t>(part * (seconds.size() - 1))];
  };
  std::printf("{\"seconds\": %.9f, \"p10\": %.9f, \"p50\": %.9f, \"p90\": %.9f}\n", whole,
              percentile(0.1), percentile(0.5), percentile(0.9));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) Fail("usage: client ADDRESS PAYLOAD BYTES");
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), arguments);
  const auto stub = pb::Environment::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const auto stream = stub->Process(&context);
  CreateAndJoin(stream.get(), argv[2], std::atoll(argv[3]));
  for (int depth, count; std::cin >> depth >> count;) Measure(stream.get(), depth, count);
  stream->WritesDone();
  return stream->Finish().ok() ? 0 : 1;
}
