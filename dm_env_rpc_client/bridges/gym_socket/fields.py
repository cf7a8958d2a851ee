"""The fields of packets, and how they are read from bytes in pieces of any size.

A message is read by a generator, `Steps`, which yields how many bytes it needs next and
returns the message; a `Decoder` runs it. A length is checked before memory is allocated for
it, so a peer cannot make this process allocate more than `Limits` allows.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Generator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from dm_env_rpc_client.bridges import bounded_json
from dm_env_rpc_client.errors import ProtocolError, SpecError

__all__ = [
    "Decoder",
    "Limits",
    "ObservationBounds",
    "Steps",
    "check_length",
    "decode_bool",
    "encode_json",
    "encode_string",
    "read_bool",
    "read_json",
    "read_string",
]

T = TypeVar("T")

Steps: TypeAlias = Generator["int | memoryview", "bytes | bytearray", T]
"""Yields the number of bytes that it needs, or memory to fill; returns the message."""

_U32 = struct.Struct("<I")
_FIRST_BYTES = 1 << 16


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


class Decoder(Generic[T]):
    """Runs `Steps` on bytes that come in pieces.

    Args:
      steps: what to read.

    Attributes:
      is_done: whether the message is complete.
    """

    def __init__(self, steps: Steps[T]):
        self._steps = steps
        self._result: T | None = None
        # The bytes of the current field, unless `steps` yielded memory for it, and the number of
        # bytes that the field will have.
        self._own: bytes | bytearray = b""
        self._wanted = 0
        self._memory = memoryview(self._own)
        self._filled = 0
        self.is_done = False
        self._resume(None)

    @property
    def result(self) -> T:
        """The message, once it is complete."""
        assert self.is_done, "the message is not complete"
        return self._result  # type: ignore[return-value]  # None only if T includes it.

    @property
    def target(self) -> memoryview:
        """The memory for the next bytes; call `advance` after writing to it."""
        return self._memory[self._filled :]

    def advance(self, count: int) -> None:
        """Continues after `count` bytes were written to `target`."""
        self._filled += count
        if self._filled < len(self._memory):
            return
        if self._filled < self._wanted:
            # The memory grows with the bytes that arrive, so that a length alone does not
            # allocate a megabyte.
            grown = bytearray(min(self._wanted, 2 * self._filled))
            grown[: self._filled] = self._own
            self._own, self._memory = grown, memoryview(grown)
        else:
            self._resume(self._own)

    def feed(self, data: bytes | bytearray | memoryview) -> int:
        """Reads the bytes that belong to the message and returns their number.

        Raises:
          ProtocolError: they break the protocol.
        """
        used = 0
        while not self.is_done and used < len(data):
            count = min(len(self._memory) - self._filled, len(data) - used)
            self._memory[self._filled : self._filled + count] = data[used : used + count]
            used += count
            self.advance(count)
        return used

    def _resume(self, data: bytes | bytearray | None) -> None:
        try:
            wanted = next(self._steps) if data is None else self._steps.send(data)
            while wanted == 0:
                wanted = self._steps.send(b"")
        except StopIteration as stop:
            self.is_done = True
            self._result = stop.value
            return
        self._filled = 0
        if isinstance(wanted, memoryview):
            self._own, self._wanted, self._memory = b"", 0, wanted
        else:
            self._own, self._wanted = bytearray(min(wanted, _FIRST_BYTES)), wanted
            self._memory = memoryview(self._own)


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


def read_string(limit: int, where: str) -> Steps[str]:
    """Reads a string of at most `limit` bytes."""
    data = yield from _read_field(limit, where)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{where}: not UTF-8: {error}") from None


def read_json(limit: int, where: str, max_values: int = bounded_json.MAX_VALUES) -> Steps[Any]:
    """Reads JSON of at most `limit` bytes and `max_values` values."""
    data = yield from _read_field(limit, where)
    return bounded_json.decode(data, where, max_values)


def read_bool(where: str) -> Steps[bool]:
    """Reads a bool: a byte that is 0 or 1."""
    (byte,) = yield 1
    return decode_bool(byte, where)


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


def _read_field(limit: int, where: str) -> Steps[bytes | bytearray]:
    (length,) = _U32.unpack((yield 4))
    check_length(length, limit, where)
    return (yield length)
