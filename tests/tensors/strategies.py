"""Values that the tests of the core draw from, and what they measure them by."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from google.protobuf import any_pb2, message, struct_pb2
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dm_env_rpc_client import dm_env_rpc_pb2
from tests.reliability import scorecard

Array = npt.NDArray[Any]

DATA_TYPES: dict[str, Any] = {
    "float32": dm_env_rpc_pb2.FLOAT,
    "float64": dm_env_rpc_pb2.DOUBLE,
    "int8": dm_env_rpc_pb2.INT8,
    "int32": dm_env_rpc_pb2.INT32,
    "int64": dm_env_rpc_pb2.INT64,
    "uint8": dm_env_rpc_pb2.UINT8,
    "uint32": dm_env_rpc_pb2.UINT32,
    "uint64": dm_env_rpc_pb2.UINT64,
    "bool": dm_env_rpc_pb2.BOOL,
}
FIELDS: dict[str, str] = {
    dtype: f"{dm_env_rpc_pb2.DataType.Name(number).lower()}s"
    for dtype, number in DATA_TYPES.items()
}
"""The payload field of each NumPy dtype of the protocol."""

INTEGERS = tuple(dtype for dtype in FIELDS if "int" in dtype)


def _strided(array: Array) -> Array:
    wide = np.zeros((*array.shape[:-1], array.shape[-1] * 2), array.dtype)
    wide[..., ::2] = array
    strided: Array = wide[..., ::2]
    return strided


def _negative_strides(array: Array) -> Array:
    reverse = (slice(None, None, -1),) * array.ndim
    reversed_array: Array = np.ascontiguousarray(array[reverse])[reverse]
    return reversed_array


def _read_only(array: Array) -> Array:
    frozen: Array = array.copy()
    frozen.setflags(write=False)
    return frozen


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "row-major": np.ascontiguousarray,
    "column-major": np.asfortranarray,
    "strided": _strided,
    "negative strides": _negative_strides,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "read-only": _read_only,
}
"""Memory layouts of one and the same array of at least one dimension."""


def shapes(min_dims: int = 0, min_side: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return npst.array_shapes(min_dims=min_dims, max_dims=4, min_side=min_side, max_side=4)


def arrays(min_dims: int = 1) -> st.SearchStrategy[Array]:
    """Arrays of every numeric dtype of the protocol and bool, NaN and infinities included."""
    return st.sampled_from(sorted(FIELDS)).flatmap(
        lambda dtype: npst.arrays(np.dtype(dtype), shapes(min_dims))
    )


def strings() -> st.SearchStrategy[str]:
    """Text that UTF-8 can encode."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def same_bits(left: Any, right: Any) -> bool:
    """Whether two arrays are the same to the last bit: NaN is itself, 0.0 is not -0.0."""
    left, right = np.asarray(left), np.asarray(right)
    return bool(
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


def varint(number: int) -> bytes:
    """The encoding of a number on the wire; negative ones as 64 bits."""
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def cost(call: Callable[[], object]) -> tuple[float, int]:
    """The seconds of CPU (the best of three) and the peak of bytes."""
    seconds = []
    tracemalloc.start()
    try:
        for _ in range(3):
            started = time.thread_time()
            call()
            seconds.append(time.thread_time() - started)
        return min(seconds), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def mutated(contents: bytes, rng: random.Random) -> bytes:
    """One to three bytes of `contents` replaced, removed or joined by others."""
    changed = bytearray(contents)
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, len(changed))
        changed[place : place + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
    return bytes(changed)


def counts(full: int) -> pytest.MarkDecorator:
    """Runs a test at a fortieth of the scorecard's count, and whole under the soak marker."""
    return scorecard.counts(full // 40, full)


VALUES: dict[str, list[Any]] = {
    "float32": [0.5, -1.5, 3.4028234663852886e38, float("inf"), -0.0, 1e-45],
    "float64": [0.1, -1.5, 1.7976931348623157e308, float("-inf"), -0.0, 5e-324],
    "int8": [-128, -1, 0, 1, 127, 5],
    "int32": [-(2**31), -1, 0, 1, 2**31 - 1, 300],
    "int64": [-(2**63), -1, 0, 1, 2**63 - 1, 2**40],
    "uint8": [0, 1, 127, 128, 255, 5],
    "uint32": [0, 1, 2**31, 2**32 - 1, 300, 5],
    "uint64": [0, 1, 2**63, 2**64 - 1, 2**40, 5],
    "bool": [True, False, True, True, False, False],
}


def record(**values: Any) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(values)
    return made


def packed(message: message.Message) -> any_pb2.Any:
    made = any_pb2.Any()
    made.Pack(message)
    return made


def element_bytes(dtype: str, value: Any) -> tuple[int, bytes]:
    """The wire type and the bytes of one element."""
    if dtype == "float32":
        return 5, struct.pack("<f", value)
    if dtype == "float64":
        return 1, struct.pack("<d", value)
    return 0, varint(int(value))
