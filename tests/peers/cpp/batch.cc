// A gRPC client that steps a batched world and prints what each row has seen.
//
//   batch ADDRESS ROWS STEPS OBSERVATION
//
// It asks for a world with ROWS rows, the settings `rows.seed` 0, 1, 2 ... and an action of which
// row R takes (7 * step + R) modulo the number of actions. Of each step it prints a line of JSON:
// the `state` of the stream, the `step_type` and `reward` of each row, and all `values` of the
// observation of that name.

#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "dm_env_rpc/v1/dm_env_rpc.grpc.pb.h"

namespace {

namespace pb = dm_env_rpc::v1;
using Stream = grpc::ClientReaderWriter<pb::EnvironmentRequest, pb::EnvironmentResponse>;

[[noreturn]] void Fail(const std::string& why) {
  std::cerr << why << std::endl;
  std::exit(1);
}

pb::EnvironmentResponse Ask(Stream* stream, const pb::EnvironmentRequest& request) {
  pb::EnvironmentResponse response;
  if (!stream->Write(request) || !stream->Read(&response)) Fail("the stream has ended");
  if (response.has_error()) Fail(response.error().message());
  return response;
}

// The elements of a tensor; one element stands for all.
std::vector<double> Elements(const pb::Tensor& tensor) {
  std::vector<double> found;
  for (unsigned char element : tensor.uint8s().array()) found.push_back(element);
  for (float element : tensor.floats().array()) found.push_back(element);
  for (double element : tensor.doubles().array()) found.push_back(element);
  size_t size = 1;
  for (int length : tensor.shape()) size *= length;
  if (found.size() == 1) found.resize(size, found[0]);
  if (found.size() != size) Fail("a tensor has not as many elements as its shape");
  return found;
}

void Print(const char* name, const std::vector<double>& values) {
  std::printf(", \"%s\": [", name);
  for (size_t index = 0; index < values.size(); ++index) {
    std::printf("%s%.17g", index ? ", " : "", values[index]);
  }
  std::printf("]");
}

int64_t Named(const google::protobuf::Map<uint64_t, pb::TensorSpec>& specs,
              const std::string& name) {
  for (const auto& [uid, spec] : specs) {
    if (spec.name() == name) return uid;
  }
  Fail("there is no " + name);
}

pb::ActionObservationSpecs CreateAndJoin(Stream* stream, int rows) {
  pb::EnvironmentRequest request;
  auto& settings = *request.mutable_create_world()->mutable_settings();
  settings["num_envs"].mutable_int64s()->add_array(rows);
  settings["rows.seed"].add_shape(rows);
  for (int row = 0; row < rows; ++row) settings["rows.seed"].mutable_int64s()->add_array(row);
  const std::string world = Ask(stream, request).create_world().world_name();
  request.mutable_join_world()->set_world_name(world);
  return Ask(stream, request).join_world().specs();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) Fail("usage: batch ADDRESS ROWS STEPS OBSERVATION");
  const int rows = std::atoi(argv[2]), steps = std::atoi(argv[3]);
  const auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  const auto stub = pb::Environment::NewStub(channel);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const auto stream = stub->Process(&context);
  const auto specs = CreateAndJoin(stream.get(), rows);
  if (specs.actions().size() != 1) Fail("expected one action");
  const auto& [action_uid, action_spec] = *specs.actions().begin();
  if (action_spec.shape_size() != 1 || action_spec.shape(0) != rows) Fail("not an action a row");
  const int choices = action_spec.max().int32s().array(0) + 1;
  const int64_t step_type = Named(specs.observations(), "step_type");
  const int64_t reward = Named(specs.observations(), "reward");
  const int64_t observed = Named(specs.observations(), argv[4]);
  for (int step = 0; step < steps; ++step) {
    pb::EnvironmentRequest request;
    auto* asked = request.mutable_step();
    auto& action = (*asked->mutable_actions())[action_uid];
    action.add_shape(rows);
    for (int row = 0; row < rows; ++row) {
      action.mutable_int32s()->add_array((7 * step + row) % choices);
    }
    for (int64_t uid : {step_type, reward, observed}) asked->add_requested_observations(uid);
    const auto response = Ask(stream.get(), request);
    const auto& found = response.step().observations();
    std::printf("{\"state\": %d", static_cast<int>(response.step().state()));
    Print("step_type", Elements(found.at(step_type)));
    Print("reward", Elements(found.at(reward)));
    Print("values", Elements(found.at(observed)));
    std::printf("}\n");
  }
  stream->WritesDone();
  return stream->Finish().ok() ? 0 : 1;
}
