// A dm_env_rpc server on @grpc/grpc-js; for its environment see tests/peers.
//
//   node server.js PROTOS GOOGLE_RPC [--address 127.0.0.1:0] [--certificate FILE --key FILE]
//
// It prints its address and ends, gracefully, when stdin does.
"use strict";

const fs = require("node:fs");
const { once } = require("node:events");
const { parseArgs } = require("node:util");

const grpc = require("@grpc/grpc-js");

const { loadEnvironment } = require("./definition.js");
const { Session, Worlds } = require("./environment.js");

const GRACE_MILLISECONDS = 500;

function metadataOf(call) {
  const pairs = [];
  for (const key of Object.keys(call.metadata.getMap())) {
    for (const value of call.metadata.get(key)) {
      pairs.push(`${key}=${Buffer.isBuffer(value) ? value.toString("hex") : value}`);
    }
  }
  return pairs;
}

async function process_(call, worlds) {
  const gone = new Promise((resolve) => call.once("cancelled", resolve));
  const session = new Session(worlds, metadataOf(call), gone);
  try {
    // Without this the end of the requests would destroy the answers' side too.
    for await (const request of call.iterator({ destroyOnReturn: false })) {
      const answer = await session.answer(request);
      if (!call.write(answer)) await Promise.race([once(call, "drain"), gone]);
    }
    call.end();
  } catch (error) {
    // A client that goes away ends the iteration in the middle.
    if (error.code !== "ABORT_ERR") call.emit("error", error);
  } finally {
    session.leave();
  }
}

function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      address: { type: "string", default: "127.0.0.1:0" },
      certificate: { type: "string" },
      key: { type: "string" },
    },
  });
  const Environment = loadEnvironment(positionals);
  const server = new grpc.Server({
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
  });
  const worlds = new Worlds();
  server.addService(Environment.service, { Process: (call) => process_(call, worlds) });
  const credentials = values.certificate
    ? grpc.ServerCredentials.createSsl(null, [
        {
          cert_chain: fs.readFileSync(values.certificate),
          private_key: fs.readFileSync(values.key),
        },
      ])
    : grpc.ServerCredentials.createInsecure();
  server.bindAsync(values.address, credentials, (error, port) => {
    if (error) throw error;
    const isUnix = values.address.startsWith("unix:");
    console.log(isUnix ? values.address : values.address.replace(/:\d+$/, `:${port}`));
  });
  process.stdin.resume();
  process.stdin.on("end", () => {
    server.tryShutdown(() => process.exit(0));
    setTimeout(() => {
      server.forceShutdown();
      process.exit(0);
    }, GRACE_MILLISECONDS);
  });
}

main();
