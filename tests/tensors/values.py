"""Values of each dtype with their payloads, and messages."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf import any_pb2, message, struct_pb2

from tests.tensors.strategies import varint

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
