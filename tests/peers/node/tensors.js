// Tensors against their specs, and the payloads that are observed.
"use strict";

const CODES = { INVALID_ARGUMENT: 3, NOT_FOUND: 5, FAILED_PRECONDITION: 9, UNIMPLEMENTED: 12 };

// Name, and the payload field that carries it; the DataType is the place in this list, from 1.
const DTYPES = [
  ["float", "floats"],
  ["double", "doubles"],
  ["int8", "int8s"],
  ["int32", "int32s"],
  ["int64", "int64s"],
  ["uint8", "uint8s"],
  ["uint32", "uint32s"],
  ["uint64", "uint64s"],
  ["bool", "bools"],
  ["string", "strings"],
  ["proto", "protos"],
];
const [FLOAT, DOUBLE, , INT32, INT64, UINT8, , , , STRING] = DTYPES.map((_, i) => i + 1);
const COUNTER_PERIOD = 100;

// A request that is refused: becomes the error of its answer.
class RequestError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

function refuse(message, code = CODES.INVALID_ARGUMENT) {
  throw new RequestError(code, message);
}

// Checks dtype and shape of a tensor and writes its shape out in full.
function conform(spec, tensor) {
  const field = DTYPES[spec.dtype - 1][1];
  if (tensor.payload !== field) refuse(`${spec.name}: is ${tensor.payload}, its spec ${field}`);
  const count = (tensor[field].array ?? []).length;
  const variable = tensor.shape.findIndex((size) => size < 0);
  const known = tensor.shape.reduce((product, size) => product * (size < 0 ? 1 : size), 1);
  if (tensor.shape.filter((size) => size < 0).length > 1) {
    refuse(`${spec.name}: two variable lengths`);
  }
  let product = known;
  if (variable >= 0) {
    const length = count === 1 || known === 0 ? 1 : Math.floor(count / known);
    tensor.shape[variable] = length;
    product *= length;
  }
  if (count !== 1 && count !== product) {
    refuse(`${spec.name}: ${count} elements do not fill [${tensor.shape}]`);
  }
  const fits =
    tensor.shape.length === spec.shape.length &&
    spec.shape.every((size, axis) => size < 0 || size === tensor.shape[axis]);
  if (!fits) refuse(`${spec.name}: has shape [${tensor.shape}], its spec [${spec.shape}]`);
}

// What is observed before anybody has acted: one zero for all elements, or none where a
// length is variable.
function initial(spec) {
  const shape = spec.shape.map((size) => Math.max(size, 0));
  const count = shape.every((size) => size > 0) ? 1 : 0;
  const [name, field] = DTYPES[spec.dtype - 1];
  const zeros = { int8: Buffer.alloc(count), uint8: Buffer.alloc(count) };
  const zero = { string: "", bool: false, proto: {} }[name] ?? 0;
  return { [field]: { array: zeros[name] ?? new Array(count).fill(zero) }, shape };
}

function bytes(count) {
  const array = Buffer.alloc(count);
  for (let i = 0; i < count; i++) array[i] = i * 31;
  return array;
}

const FILLED = {
  scalar: () => [FLOAT, [], [0]],
  vector: () => [DOUBLE, [256], Array.from({ length: 256 }, (_, i) => i * 0.5)],
  int32: () => [
    INT32,
    [84, 84],
    Array.from({ length: 84 * 84 }, (_, i) => ((i * 7919) % 20011) - 10005),
  ],
  uint8: () => [UINT8, [84, 84, 4], bytes(84 * 84 * 4)],
  float32: () => [FLOAT, [84, 84, 4], Array.from({ length: 84 * 84 * 4 }, (_, i) => i * 0.25)],
  video: () => [UINT8, [1080, 1920, 3], bytes(1080 * 1920 * 3)],
  bytes: (size) => [UINT8, [size], bytes(size)],
};

// Returns the spec of a payload and what makes its tensor at a step.
function makePayload(name, size) {
  if (!Object.hasOwn(FILLED, name)) refuse(`payload: there is no '${name}'`);
  if (name === "bytes" && !(size >= 1 && size <= 2 ** 30)) refuse("bytes: is from 1 to 2**30");
  const [dtype, shape, array] = FILLED[name](size);
  const tensor = { [DTYPES[dtype - 1][1]]: { array }, shape };
  const at = (step) => {
    array[0] = step % COUNTER_PERIOD;
    return tensor;
  };
  return [{ name: "payload", dtype, shape }, at];
}

// The values of settings.
function integers(name, tensor) {
  if (!["int32s", "int64s"].includes(tensor.payload)) refuse(`${name}: is int32 or int64`);
  return tensor[tensor.payload].array.map(Number);
}

function integer(name, tensor) {
  const values = integers(name, tensor);
  if (values.length !== 1 || values[0] < 0) {
    refuse(`${name}: is one integer that is not negative`);
  }
  return values[0];
}

function number(name, tensor) {
  const array = (tensor.doubles ?? tensor.floats)?.array ?? [];
  return array.length === 1 ? array[0] : integer(name, tensor);
}

function text(name, tensor) {
  if (tensor.payload !== "strings" || tensor.strings.array.length !== 1) {
    refuse(`${name}: is one string`);
  }
  return tensor.strings.array[0];
}

module.exports = {
  CODES, DTYPES, INT32, INT64, STRING, RequestError,
  conform, initial, integer, integers, makePayload, number, refuse, text,
};
