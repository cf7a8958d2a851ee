// Worlds, and the part of one connection in them; see tests/peers for what they do.
"use strict";

const { setTimeout: sleep } = require("node:timers/promises");

const {
  CODES, DTYPES, INT32, INT64, STRING, RequestError,
  conform, initial, integer, integers, makePayload, number, refuse, text,
} = require("./tensors.js");

const [RUNNING, TERMINATED, INTERRUPTED] = [1, 2, 3];
const [STEPS_UID, METADATA_UID] = [12, 13];

// A map with keys of 64 bits comes with each key as eight characters, a byte in each.
function uidOf(key) {
  if (key.length !== 8) return key;
  const bytes = Buffer.from(key, "latin1");
  return String(bytes.readBigUInt64LE());
}

function byUid(map) {
  return Object.fromEntries(Object.entries(map).map(([key, value]) => [uidOf(key), value]));
}

function noSettings(settings) {
  for (const name of Object.keys(settings)) refuse(`no setting '${name}' here`);
}

function echoSpecs(shape) {
  const echoed = Object.fromEntries(
    DTYPES.map(([name], i) => [i + 1, { name, dtype: i + 1, shape }])
  );
  const others = {
    [STEPS_UID]: { name: "steps", dtype: INT64, shape: [] },
    [METADATA_UID]: { name: "metadata", dtype: STRING, shape: [-1] },
  };
  return { actions: echoed, observations: { ...echoed, ...others } };
}

class World {
  constructor(name, settings) {
    const values = { payload: "echo", bytes: 0, shape: [-1], length: 0, delay: 0 };
    const parse = { payload: text, bytes: integer, shape: integers, length: integer, delay: number };
    for (const [setting, tensor] of Object.entries(settings)) {
      if (!Object.hasOwn(parse, setting)) refuse(`no setting '${setting}' here`);
      values[setting] = parse[setting](setting, tensor);
    }
    this.name = name;
    this.length = values.length;
    this.delay = values.delay;
    this.hasAgent = this.running = false;
    this.steps = 0;
    this.untold = []; // Those who wait until the agent knows of a ResetWorld.
    if (values.payload === "echo") {
      this.specs = echoSpecs(values.shape);
    } else {
      const [spec, at] = makePayload(values.payload, values.bytes);
      this.payload = at;
      const action = { name: "action", dtype: INT32, shape: [] };
      this.specs = { actions: { 1: action }, observations: { 1: spec } };
    }
  }

  tell() {
    const untold = this.untold;
    this.untold = [];
    for (const resolve of untold) resolve();
    return untold.length > 0;
  }
}

class Worlds {
  constructor() {
    this.byName = new Map();
    this.created = 0;
  }

  create(settings) {
    const world = new World(`world-${this.created++}`, settings);
    this.byName.set(world.name, world);
    return world.name;
  }

  find(name) {
    return this.byName.get(name) ?? refuse(`no world '${name}'`, CODES.NOT_FOUND);
  }

  destroy(name) {
    if (this.find(name).hasAgent) refuse("the world has an agent", CODES.FAILED_PRECONDITION);
    this.byName.delete(name);
  }
}

class Session {
  // `gone` is a promise of the end of the call.
  constructor(worlds, metadata, gone) {
    this.worlds = worlds;
    this.metadata = metadata;
    this.gone = gone;
    this.world = null;
    this.acted = {};
  }

  // Returns the one answer to a request.
  async answer(request) {
    try {
      return await this.carryOut(request);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      return { error: { code: error.code, message: error.message } };
    }
  }

  async carryOut(request) {
    const payload = request[request.payload];
    switch (request.payload) {
      case "create_world":
        return { create_world: { world_name: this.worlds.create(payload.settings) } };
      case "join_world":
        this.join(payload);
        return { join_world: { specs: this.world.specs } };
      case "step":
        return { step: await this.step(payload) };
      case "reset":
        this.reset(payload);
        return { reset: { specs: this.world.specs } };
      case "reset_world":
        await this.resetWorld(payload);
        return { reset_world: {} };
      case "leave_world":
        this.leave();
        return { leave_world: {} };
      case "destroy_world":
        this.worlds.destroy(payload.world_name);
        return { destroy_world: {} };
      case "extension":
        return refuse(`no extension '${payload.type_url}'`, CODES.UNIMPLEMENTED);
      default:
        return refuse("the request is empty");
    }
  }

  join({ world_name: name, settings }) {
    if (this.world) refuse(`joined to '${this.world.name}' already`, CODES.FAILED_PRECONDITION);
    const world = this.worlds.find(name);
    noSettings(settings);
    if (world.hasAgent) refuse("the world has its agent", CODES.FAILED_PRECONDITION);
    world.hasAgent = true;
    world.running = false;
    world.steps = 0;
    this.world = world;
  }

  leave() {
    if (!this.world) return;
    this.world.hasAgent = this.world.running = false;
    this.world.tell();
    this.world = null;
    this.acted = {};
  }

  joined() {
    return this.world ?? refuse("not joined to a world", CODES.FAILED_PRECONDITION);
  }

  async step({ actions, requested_observations: requested }) {
    const world = this.joined();
    for (const uid of requested) {
      if (!Object.hasOwn(world.specs.observations, uid)) refuse(`no observation ${uid}`);
    }
    if (world.delay) await sleep(world.delay * 1000);
    const state = this.advance(world, byUid(actions));
    const observations = requested.map((uid) => [uid, this.observe(world, Number(uid))]);
    return { state, observations: Object.fromEntries(observations) };
  }

  advance(world, actions) {
    if (world.tell()) {
      world.running = false;
      return INTERRUPTED;
    }
    if (!world.running) {
      world.running = true;
      world.steps = 0;
      this.acted = {};
      return RUNNING;
    }
    for (const [uid, tensor] of Object.entries(actions)) {
      if (!Object.hasOwn(world.specs.actions, uid)) refuse(`no action ${uid}`);
      conform(world.specs.actions[uid], tensor);
    }
    Object.assign(this.acted, actions);
    world.steps++;
    if (world.steps !== world.length) return RUNNING;
    world.running = false;
    return TERMINATED;
  }

  observe(world, uid) {
    if (world.payload) return world.payload(world.steps);
    if (uid === STEPS_UID) return { int64s: { array: [world.steps] } };
    if (uid === METADATA_UID) {
      return { strings: { array: this.metadata }, shape: [this.metadata.length] };
    }
    return this.acted[uid] ?? initial(world.specs.actions[uid]);
  }

  reset({ settings }) {
    const world = this.joined();
    const { length, ...others } = settings;
    noSettings(others);
    if (length) world.length = integer("length", length);
    world.running = false;
    world.tell();
  }

  async resetWorld({ world_name: name, settings }) {
    const world = this.worlds.find(name);
    noSettings(settings);
    if (world === this.world || !world.running) {
      world.running = false;
      return;
    }
    const told = new Promise((resolve) => world.untold.push(resolve));
    await Promise.race([told, this.gone]);
  }
}

module.exports = { Session, Worlds };
