"""The fields of packets: how values become bytes, and are read from a peer that may be hostile.

A length is checked before memory is allocated for it, so a peer cannot make this process allocate
more than `Limits` allows.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, NamedTuple, Protocol

from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import bounded_json

_U32 = struct.Struct("<I")


class Reader(Protocol):
    """Where the bytes of messages are read from. No more is read than is asked for."""

    def read(self, count: int) -> bytes:
        """Returns the next bytes, exactly as many."""

    def read_into(self, memory: memoryview) -> None:
        """Fills memory with the next bytes."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The maximum sizes of what a peer sends, in bytes.

    Attributes:
      name: the name of an environment or a wrapper.
      field: any other field. If the space of a byte list is known, its size is the limit.
      space: the JSON of a space. Two numbers for each pixel of a 210x160x3 screen take more
        than the megabyte of a field.
    """

    name: int = 256
    field: int = 1 << 20
    space: int = 2 << 20


class ObservationBounds(NamedTuple):
    """The limits that follow from the observation space.

    Attributes:
      shape: the shape of a byte list; None if the space is not one array.
      values: the maximum number of values in JSON.
    """

    shape: tuple[int, ...] | None = None
    values: int = bounded_json.MAX_VALUES


def encode_string(text: str, where: str) -> bytes:
    """Returns a string after its length; SpecError if a field cannot hold it."""
    try:
        data = text.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise SpecError(f"{where}: {text!r} is not a Unicode string: {error}") from None
    return _with_length(data, where)


def encode_json(value: Any, where: str) -> bytes:
    """Returns JSON after its length; SpecError if JSON or a field cannot hold the value."""
    return _with_length(bounded_json.encode(value, where), where)


def read_string(reader: Reader, limit: int, where: str) -> str:
    """Reads a string of at most `limit` bytes."""
    data = _read_field(reader, limit, where)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{where}: not UTF-8: {error}") from None


def read_json(
    reader: Reader, limit: int, where: str, max_values: int = bounded_json.MAX_VALUES
) -> Any:
    """Reads JSON of at most `limit` bytes and `max_values` values."""
    return bounded_json.decode(_read_field(reader, limit, where), where, max_values)


def decode_bool(byte: int, where: str) -> bool:
    """Returns a byte as a bool; ProtocolError if it is neither 0 nor 1."""
    if byte > 1:
        raise ProtocolError(f"{where}: byte {byte:#04x} for a bool; expected 0 or 1")
    return byte == 1


def check_length(length: int, limit: int, where: str) -> None:
    """Raises ProtocolError if a length is above a limit."""
    if length > limit:
        raise ProtocolError(f"{where}: has a length of {length} bytes; at most {limit} are allowed")


def _with_length(data: bytes, where: str) -> bytes:
    if len(data) > 0xFFFFFFFF:
        raise SpecError(f"{where}: {len(data)} bytes; a field holds less than 4 GiB")
    return _U32.pack(len(data)) + data


def _read_field(reader: Reader, limit: int, where: str) -> bytes:
    (length,) = _U32.unpack(reader.read(4))
    check_length(length, limit, where)
    return reader.read(length)
