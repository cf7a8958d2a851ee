// The service of dm_env_rpc, read from its .proto files.
"use strict";

const grpc = require("@grpc/grpc-js");
const protoLoader = require("@grpc/proto-loader");

// Returns the service's constructor of clients; `service` is its definition for servers.
function loadEnvironment(includeDirs) {
  const definition = protoLoader.loadSync("dm_env_rpc/v1/dm_env_rpc.proto", {
    includeDirs,
    keepCase: true,
    longs: String,
    enums: String,
    arrays: true,
    objects: true,
    oneofs: true,
  });
  return grpc.loadPackageDefinition(definition).dm_env_rpc.v1.Environment;
}

module.exports = { loadEnvironment };
