// A gRPC client that tries a server whose environment echoes bytes; see tests/peers.
//
//   node trial.js PROTOS GOOGLE_RPC ADDRESS BYTES
//
// It prints what it saw as one line of JSON, and exits with 1 where an answer is wrong.
"use strict";

const assert = require("node:assert");
const { setTimeout: sleep } = require("node:timers/promises");

const grpc = require("@grpc/grpc-js");

const { loadEnvironment } = require("./definition.js");

const STREAMS = 16;
const STEPS = 50;

// A stream of its own, on which one request after another is asked.
class Call {
  constructor(client, milliseconds = 60000) {
    this.stream = client.Process({ deadline: Date.now() + milliseconds });
    this.status = new Promise((resolve) => this.stream.once("status", resolve));
    // The status says the same; without a listener it would end the process.
    this.stream.on("error", () => {});
  }

  async ask(request) {
    const answered = new Promise((resolve) => this.stream.once("data", resolve));
    this.stream.write(request);
    const over = this.status.then((status) => assert.fail(`ended: ${JSON.stringify(status)}`));
    return Promise.race([answered, over]);
  }

  async create() {
    return (await this.ask({ create_world: {} })).create_world.world_name;
  }

  // Returns whether the world had no other agent.
  async join(world) {
    return (await this.ask({ join_world: { world_name: world } })).payload === "join_world";
  }

  async begin() {
    assert.equal((await this.ask({ step: {} })).step.state, "RUNNING");
  }

  async step(bytes) {
    const action = { uint8s: { array: bytes }, shape: [bytes.length] };
    const answer = await this.ask({ step: { actions: { 1: action }, requested_observations: [1] } });
    assert.equal(answer.payload, "step", JSON.stringify(answer.error));
    const [echoed] = Object.values(answer.step.observations); // Their keys are bytes of the UIDs.
    assert(echoed.uint8s.array.equals(bytes), "not the same bytes");
  }

  async end() {
    this.stream.end();
    this.stream.resume();
    assert.equal((await this.status).code, grpc.status.OK);
  }
}

async function play(client, number) {
  const call = new Call(client);
  await call.join(await call.create());
  await call.begin();
  for (let step = 0; step < STEPS; step++) {
    await call.step(Buffer.alloc(5, (number * STEPS + step) % 256));
  }
  await call.end();
}

async function main() {
  const [protos, googleRpc, address, size] = process.argv.slice(2);
  const Environment = loadEnvironment([protos, googleRpc]);
  const client = new Environment(address, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
  });

  const large = new Call(client);
  const world = await large.create();
  await large.join(world);
  await large.begin();
  const bytes = Buffer.alloc(Number(size));
  for (let index = 0; index < bytes.length; index++) bytes[index] = index % 251;
  await large.step(bytes);
  large.stream.cancel();
  assert.equal((await large.status).code, grpc.status.CANCELLED);
  // The server has to notice that first.
  const next = new Call(client);
  while (!(await next.join(world))) await sleep(10);
  await next.end();

  const late = new Call(client, 300);
  late.stream.resume();
  const { code } = await late.status;

  await Promise.all(Array.from({ length: STREAMS }, (_, number) => play(client, number)));
  console.log(JSON.stringify({ bytes: bytes.length, late: code, steps: STREAMS * STEPS }));
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
