"""Steps to bytes and back, without a wire: every dtype, both directions, and tensors alone.

Both sides start from the same values and the same bytes. Encoding is an action to a serialized
EnvironmentRequest, decoding a serialized EnvironmentResponse to the observation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dm_env_rpc.v1 import message_utils, tensor_utils
from dm_env_rpc.v1 import spec_manager as reference_spec_manager
from google.protobuf import any_pb2

from dm_env_rpc_client import SpecManager, dm_env_rpc_pb2, pack_tensor, unpack_tensor
from dm_env_rpc_client.protocol.step_codec import StepCodec
from tests.benchmarks.results import Row, Section, Target
from tests.benchmarks.rounds import Contender, timed
from tests.benchmarks.settings import Settings
from tests.benchmarks.steppers import REFERENCE

OURS = "dm_env_rpc_client"
ENCODE, DECODE, PACK, UNPACK = "encode", "decode", "pack_tensor", "unpack_tensor"

_IMAGE = (84, 84, 4)
_SHAPES: tuple[tuple[int, ...], ...] = ((), (256,), _IMAGE)
_OBJECT_SHAPES: tuple[tuple[int, ...], ...] = ((), (64,))
_DTYPES = ("float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "uint64", "bool")
_TURN_SECONDS = 1e-3

_DECODE_IMAGE = 50.0
_ENCODE_IMAGE = 30.0
_TENSORS = 0.5
"""By itself `unpack_tensor` copies the bytes of 8-bit integers, which the reference shows as they
are, read-only: what it returns is the caller's. In a step they are not copied."""


def _values(dtype: str, shape: tuple[int, ...]) -> Any:
    """Of both signs where the dtype has them, and of all its lengths as varints."""
    random = np.random.default_rng(0)
    if dtype == "string":
        texts = ["", "hello", "grüße", "x" * 40]
        return np.resize(np.array(texts if shape else texts[1:2], np.str_), shape)
    if dtype == "proto":
        message = any_pb2.Any(type_url="type.googleapis.com/x.Y", value=b"12345678")
        made = np.empty(shape, object)
        made.fill(message)
        return made
    kind = np.dtype(dtype).kind
    if kind == "b":
        return random.integers(2, size=shape).astype(bool)
    if kind == "f":
        return np.asarray(random.standard_normal(shape), dtype)
    info = np.iinfo(dtype)
    magnitude = 2.0 ** random.uniform(0, np.log2(float(info.max)) - 0.01, shape)
    sign = np.where(random.integers(2, size=shape), 1, -1) if info.min else 1
    return np.asarray(magnitude * sign, dtype)


def _data_type(dtype: str) -> Any:
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    return dm_env_rpc_pb2.DataType.Value(names.get(dtype, dtype.upper()))


def _calls(dtype: str, shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    """Each operation of each side, by name."""
    value = _values(dtype, shape)
    value = value if shape else value[()]
    data_type = _data_type(dtype)
    spec = dm_env_rpc_pb2.TensorSpec(name="x", dtype=data_type, shape=shape)
    tensor = tensor_utils.pack_tensor(value, dtype=data_type)
    response = dm_env_rpc_pb2.EnvironmentResponse(
        step=dm_env_rpc_pb2.StepResponse(state=dm_env_rpc_pb2.RUNNING, observations={1: tensor})
    ).SerializeToString()
    action = {"x": value}
    reference = reference_spec_manager.SpecManager({1: spec})
    ours = StepCodec(SpecManager({1: spec}), SpecManager({1: spec}), [1])

    def reference_encode() -> bytes:
        request = dm_env_rpc_pb2.StepRequest(
            requested_observations=[1], actions=reference.pack(action)
        )
        encoded: bytes = message_utils.pack_environment_request(request)[0].SerializeToString()
        return encoded

    def reference_decode() -> Any:
        answer = dm_env_rpc_pb2.EnvironmentResponse.FromString(response)
        step: Any = message_utils.unpack_environment_response(answer, "step")
        return reference.unpack(step.observations)["x"]

    def our_decode() -> Any:
        return ours.interpret(ours.decode(response)).observations["x"]

    if not np.array_equal(reference_decode(), our_decode()):
        raise AssertionError(f"the two read something else from {dtype}{list(shape)}")
    parsed = dm_env_rpc_pb2.EnvironmentRequest.FromString
    if parsed(reference_encode()) != parsed(ours.encode(action).message):
        raise AssertionError(f"the two write something else for {dtype}{list(shape)}")
    return {
        f"{ENCODE}, {REFERENCE}": reference_encode,
        f"{ENCODE}, {OURS}": lambda: ours.encode(action).message,
        f"{DECODE}, {REFERENCE}": reference_decode,
        f"{DECODE}, {OURS}": our_decode,
        f"{PACK}, {REFERENCE}": lambda: tensor_utils.pack_tensor(value, dtype=data_type),
        f"{PACK}, {OURS}": lambda: pack_tensor(value, dtype=data_type),
        f"{UNPACK}, {REFERENCE}": lambda: tensor_utils.unpack_tensor(tensor),
        f"{UNPACK}, {OURS}": lambda: unpack_tensor(tensor),
    }


def _contender(call: Callable[[], object]) -> Contender:
    """Calls as often as it can in one turn."""
    call()
    begin = time.perf_counter()
    call()
    return timed(call, max(1, min(1000, int(_TURN_SECONDS / (time.perf_counter() - begin)))))


def codec(settings: Settings) -> Section:
    """Encodes and decodes steps of every dtype in several sizes."""
    rows = _rows(settings, ENCODE, DECODE)
    image = next(row for row in rows if row.name == _name("float32", _IMAGE))
    targets = [
        Target(f"{operation} {image.name}: times as fast", _ratio(image, operation), limit)
        for operation, limit in ((DECODE, _DECODE_IMAGE), (ENCODE, _ENCODE_IMAGE))
    ]
    targets += [_never_slower(rows, operation) for operation in (ENCODE, DECODE)]
    return Section("codec", "Steps to bytes and back", rows, targets)


def tensors(settings: Settings) -> Section:
    """Packs and unpacks tensors of every dtype in several sizes."""
    rows = _rows(settings, PACK, UNPACK)
    targets = [_never_slower(rows, operation, _TENSORS) for operation in (PACK, UNPACK)]
    return Section("tensors", "Arrays to Tensor messages and back", rows, targets)


def _rows(settings: Settings, *operations: str) -> list[Row]:
    cases = [(dtype, shape) for dtype in _DTYPES for shape in _SHAPES]
    cases += [(dtype, shape) for dtype in ("string", "proto") for shape in _OBJECT_SHAPES]
    rows = []
    for dtype, shape in cases:
        name = _name(dtype, shape)
        contenders = {
            who: _contender(call)
            for who, call in _calls(dtype, shape).items()
            if who.startswith(operations)
        }
        rows.append(settings.row(name, contenders, f"codec, {name}"))
    return rows


def _name(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype} {'x'.join(map(str, shape))}" if shape else f"{dtype} scalar"


def _ratio(row: Row, operation: str) -> float:
    return row.ratio(f"{operation}, {REFERENCE}", f"{operation}, {OURS}")


def _never_slower(rows: Sequence[Row], operation: str, limit: float = 1.0) -> Target:
    worst = min(rows, key=lambda row: _ratio(row, operation))
    text = f"{operation}, every dtype: times as fast; the least, {worst.name}"
    return Target(text, _ratio(worst, operation), limit)
