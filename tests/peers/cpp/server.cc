// Serves the environment over gRPC's synchronous API, a thread for each connection.
//
//   server [--address 127.0.0.1:0] [--certificate FILE --key FILE]
//
// Prints the address and ends, gracefully, when stdin does.

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include <unistd.h>

#include "environment.h"

namespace peer {
namespace {

constexpr std::chrono::milliseconds kGracePeriod(500);

std::vector<std::string> Metadata(const grpc::ServerContext& context) {
  static const char kDigits[] = "0123456789abcdef";
  std::vector<std::string> pairs;
  for (const auto& [key, value] : context.client_metadata()) {
    std::string pair(key.data(), key.size());
    pair += '=';
    const bool is_binary = key.ends_with("-bin");
    for (char byte : std::string(value.data(), value.size())) {
      if (is_binary) {
        pair += kDigits[static_cast<unsigned char>(byte) >> 4];
        pair += kDigits[byte & 15];
      } else {
        pair += byte;
      }
    }
    pairs.push_back(pair);
  }
  return pairs;
}

// The one method, on bytes, so that prepared answers are sent as they are.
class EnvironmentService : public grpc::Service {
  using Stream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

 public:
  EnvironmentService() {
    AddMethod(new grpc::internal::RpcServiceMethod(
        "/dm_env_rpc.v1.Environment/Process", grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::BidiStreamingHandler<EnvironmentService, grpc::ByteBuffer,
                                                 grpc::ByteBuffer>(
            [](EnvironmentService* service, grpc::ServerContext* context, Stream* stream) {
              return service->Process(context, stream);
            },
            this)));
  }

 private:
  grpc::Status Process(grpc::ServerContext* context, Stream* stream) {
    Session session(&worlds_, Metadata(*context), [=] { return context->IsCancelled(); });
    grpc::ByteBuffer received;
    pb::EnvironmentRequest request;
    while (stream->Read(&received)) {
      const auto parsed = grpc::SerializationTraits<pb::EnvironmentRequest>::Deserialize(
          &received, &request);
      if (!parsed.ok()) return parsed;
      if (!stream->Write(session.Answer(request))) break;
    }
    return grpc::Status::OK;
  }

  Worlds worlds_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

int Main(int argc, char** argv) {
  std::map<std::string, std::string> options = {{"--address", "127.0.0.1:0"}};
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (options.count("--certificate")) {
    grpc::SslServerCredentialsOptions ssl;
    ssl.pem_key_cert_pairs.push_back(
        {ReadFile(options["--key"]), ReadFile(options["--certificate"])});
    credentials = grpc::SslServerCredentials(ssl);
  }
  const std::string address = options["--address"];
  EnvironmentService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, credentials, &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (!server) {
    std::cerr << "cannot listen on " << address << std::endl;
    return 1;
  }
  const bool has_port = address.rfind("unix:", 0) != 0;
  std::cout << (has_port ? address.substr(0, address.rfind(':') + 1) + std::to_string(port)
                         : address)
            << std::endl;
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  // A thread that polls for calls may take ten seconds to see that there will be none.
  std::thread([] {
    std::this_thread::sleep_for(2 * kGracePeriod);
    std::_Exit(0);
  }).detach();
  server->Shutdown(std::chrono::system_clock::now() + kGracePeriod);
  return 0;
}

}  // namespace
}  // namespace peer

int main(int argc, char** argv) { return peer::Main(argc, argv); }
