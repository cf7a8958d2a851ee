"""Tensors and their specs: an array that is what the message says, or a SpecError."""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from dm_env_rpc_client import (
    SpecError,
    bounds,
    dm_env_rpc_pb2,
    dm_env_spec_to_tensor_spec,
    pack_tensor,
    set_bounds,
    tensor_spec_to_dm_env_spec,
    unpack_tensor,
)
from dm_env_rpc_client.tensors.memory_limits import Limits
from tests.fuzz.wire import changed
from tests.tensors.strategies import DATA_TYPES, FIELDS, INTEGERS, same_bits

Tensor, TensorSpec = dm_env_rpc_pb2.Tensor, dm_env_rpc_pb2.TensorSpec

TENSOR, SPEC = 0, 1

LARGE_ELEMENTS = 1 << 12
"""Arrays of more elements are a matter of budgets (rows 21 and 33): they would only take time here.

Shapes beyond the budget are tried, since they must be refused.
"""

_SIZES = [0, 1, 1, 2, 3, 5]


def _array(rng: random.Random) -> Any:
    shape = [rng.choice(_SIZES) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    dtype = rng.choice(sorted(FIELDS))
    size = math.prod(shape)
    if dtype == "bool":
        return np.array([rng.random() < 0.5 for _ in range(size)], bool).reshape(shape)
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        edges = [limits.min, limits.max, 0, 1, 127]
        return np.array([rng.choice(edges) for _ in range(size)], dtype).reshape(shape)
    return np.frombuffer(rng.randbytes(size * np.dtype(dtype).itemsize), dtype).reshape(shape)


def _tensor(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        texts = ["".join(rng.choices("ab\0\U0001f600é", k=rng.randrange(4))) for _ in range(3)]
        return pack_tensor(texts).SerializeToString()
    message = pack_tensor(_array(rng), try_compress=rng.random() < 0.2)
    if message.shape and rng.random() < 0.2:
        message.shape[rng.randrange(len(message.shape))] = rng.choice([-1, -1, 0, 7, -2, 1 << 30])
    return message.SerializeToString()


def _spec(rng: random.Random) -> bytes:
    name = rng.choice(sorted(DATA_TYPES))
    shape = [rng.choice([-1, *_SIZES]) for _ in range(rng.choice([0, 1, 2, 3]))]
    message = TensorSpec(name=rng.choice(["", "a", "a.b"]), shape=shape, dtype=DATA_TYPES[name])
    if name != "bool" and rng.random() < 0.7:
        limits: Any = np.iinfo(name) if name in INTEGERS else np.finfo(name)
        ends = sorted(rng.choice([limits.min, limits.max, 0, 1, 10]) for _ in range(2))
        try:
            set_bounds(message, *ends)
        except SpecError:
            pass
    return message.SerializeToString()


@functools.cache
def _others() -> list[bytes]:
    rng = random.Random(0)
    return [_tensor(rng) for _ in range(50)] + [_spec(rng) for _ in range(50)]


def generate(rng: random.Random) -> bytes:
    """A kind, and a message of that kind that is changed more often than not."""
    kind = rng.choice([TENSOR, TENSOR, SPEC])
    message = _tensor(rng) if kind == TENSOR else _spec(rng)
    if rng.random() < 0.7:
        message = changed(message, rng, _others())
    return bytes([kind]) + message


def is_large(shape: Any) -> bool:
    """Whether a shape is neither small nor so large that it must be refused."""
    elements = math.prod(max(length, 1) for length in shape)
    return bool(LARGE_ELEMENTS < elements <= Limits().expanded_bytes)


def check(contents: bytes) -> str:
    """Reads a message as `generate` makes it, and returns what became of it."""
    kind, message = contents[:1] or b"\0", contents[1:]
    try:
        if kind[0] % 2 == TENSOR:
            return _check_tensor(Tensor.FromString(message))
        return _check_spec(TensorSpec.FromString(message))
    except (DecodeError, ValueError) as error:
        if isinstance(error, SpecError):
            return "refused"
        if type(error) not in (DecodeError, UnicodeDecodeError):
            raise
        return "no message"


def _check_tensor(tensor: Any) -> str:
    if is_large(tensor.shape):
        return "large, not tried"
    value = unpack_tensor(tensor)
    payload = tensor.WhichOneof("payload")
    if payload in ("strings", "protos"):
        assert np.asarray(value, object).size <= LARGE_ELEMENTS
        return "value"
    array = np.asarray(value)
    dtype = next(name for name, field in FIELDS.items() if field == payload)
    assert array.dtype == dtype, (array.dtype, dtype)
    assert len(array.shape) == len(tensor.shape)
    for got, said in zip(array.shape, tensor.shape, strict=True):
        assert said == got or said < 0, (array.shape, tensor.shape)
    elements = getattr(tensor, payload).array
    if dtype in ("int8", "uint8"):
        elements = np.frombuffer(elements, dtype)
    expected = np.array(elements if len(elements) else [], dtype)
    whole = np.broadcast_to(expected, array.size) if expected.size == 1 else expected
    assert _are_equal(array.reshape(-1), whole)
    assert _are_equal(unpack_tensor(pack_tensor(array)), array)
    return "value"


def _are_equal(left: Any, right: Any) -> bool:
    """Whether all bits are the same; those of a NaN may change on the way through a float."""
    if np.asarray(right).dtype.kind == "f":
        left, right = (
            np.where(np.isnan(each), each.dtype.type("nan"), each) for each in (left, right)
        )
    return same_bits(left, right)


def _check_spec(message: Any) -> str:
    if is_large(message.shape):
        return "large, not tried"
    spec = tensor_spec_to_dm_env_spec(message)
    again = tensor_spec_to_dm_env_spec(dm_env_spec_to_tensor_spec(spec))
    assert (again.shape, again.dtype) == (spec.shape, spec.dtype)
    if np.dtype(spec.dtype).kind in "iuf":
        low, high = bounds(message)
        assert np.all(np.asarray(low) <= np.asarray(high)), (low, high)
    return "value"
