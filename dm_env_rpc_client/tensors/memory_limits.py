"""`Limits` on the memory of a received message, and the budget that enforces them.

A few bytes can require gigabytes of memory: one element can fill an array of any shape, and a
string or an `Any` takes two bytes on the wire but up to 650 in memory. Therefore, all parts of a
message share one budget. The budget is charged before memory is allocated: in `bounded_parsing.py`
before protobuf parses the message, and in `packing.py` before an array is filled.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""Protobuf's maximum message size, in bytes."""

_LISTED = 32
"""The maximum number of names that an error message lists."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits on the memory and contents of a received message.

    For `EnvCApiEnvironment`, a message is the data copied from a library's memory at one time,
    which is either all observations of a step or all observations of its events.

    With the default limits, a message takes at most 4 times its size plus 64 MiB of memory, or 5
    times its size on a client with the transport "grpc", because grpcio keeps a copy.

    Attributes:
      message_bytes: the size of a message.
      expanded_bytes: the number of bytes by which the arrays of a message can exceed the size of
        the message. They are larger if an array is filled with one element, or if integers take
        fewer bytes on the wire.
      strings: the number of strings, and of integers outside packed fields, in all tensors of a
        message.
      messages: the number of protobuf messages (`Any`) in all tensors and error details of a
        message.
      specs: the number of actions, observations or settings in a message, or of events or
        properties of a C library.
      name_bytes: the size of the name of a world, an action, an observation, a setting or a
        property of a C library.
      nesting: the number of levels in a name, separated by periods, or the number of levels of a C
        library's properties.
      error_bytes: the size of an error's text and details; the rest is cut off.
      text_bytes: the size of a string that a C library returns as the value of a property.
      chunk_bytes: the size of a chunk of a recording file, before and after decompression. The data
        that a reader keeps, such as the TimeSteps of open episodes, may take the same amount, or 4
        times the size of the file if that is more. If messages are no larger than this, reading
        takes at most 4 times this size plus 64 MiB.
      held_bytes: the total size of all settings that a server keeps for its worlds.

    Raises:
      SpecError: a limit is not a positive integer, or `message_bytes` is above 2 GiB, protobuf's
        maximum.
    """

    message_bytes: int = 128 << 20
    # Expanded parts of a message may be in memory three times: as parsed by protobuf, as an array,
    # and as the result of a bound or a cast.
    expanded_bytes: int = 24 << 20
    # Up to 80 bytes each: a reference of protobuf, one of NumPy, and the str.
    strings: int = 1 << 19
    # Up to 650 bytes each: protobuf's message and our copy, each with its Python object.
    messages: int = 1 << 16
    # Up to 3,000 bytes each, with dm_env's spec.
    specs: int = 10_000
    name_bytes: int = 4096
    nesting: int = 64
    error_bytes: int = 1 << 16
    text_bytes: int = 1 << 20
    chunk_bytes: int = 256 << 20
    held_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = arguments.count(f"{field.name} of Limits", getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        if self.message_bytes > MAX_MESSAGE_BYTES:
            raise SpecError(
                f"Limits: message_bytes is {self.message_bytes}; a protobuf message can have at "
                f"most {MAX_MESSAGE_BYTES} bytes"
            )

    def check_name(self, name: str, where: str) -> None:
        """Raise SpecError if a received name is too long.

        Args:
          name: the name.
          where: the kind of the named object, for the error message.
        """
        # A character has at most four bytes.
        if len(name) * 4 > self.name_bytes:
            size = len(name.encode(errors="replace"))
            if size > self.name_bytes:
                raise SpecError(
                    f"{where} {shortened(name, 40)!r} has {size} bytes; at most "
                    f"{self.name_bytes} are allowed (Limits.name_bytes)"
                )


DEFAULT = Limits()


class Budget:
    """The remaining memory budget for one message.

    Args:
      limits: the limits.
    """

    __slots__ = ("_entries", "_expanded", "_fields", "_limits", "_messages", "_strings")

    def __init__(self, limits: Limits = DEFAULT):
        self._limits = limits
        self._expanded = limits.expanded_bytes
        self._strings = limits.strings
        self._messages = limits.messages
        self._entries = limits.specs
        # Skipping a field takes time, not memory. Messages with valid parts have fewer fields,
        # since strings and packed elements are not visited separately.
        self._fields = 2 * limits.messages + 8 * limits.specs

    def check_name_size(self, size: int, where: str) -> None:
        """Raise SpecError if a name of `size` bytes is too long."""
        if size > self._limits.name_bytes:
            raise SpecError(
                f"{where}: the message contains a name of {size} bytes; at most "
                f"{self._limits.name_bytes} are allowed (Limits.name_bytes)"
            )

    def expand(self, size: int, where: str) -> None:
        """Charge `size` bytes beyond the message's own size; raise SpecError if over the limit."""
        self._expanded -= size
        if self._expanded < 0:
            limit = self._limits.expanded_bytes
            raise SpecError(
                f"{where}: expanding its elements takes {size} bytes beyond their size in the "
                f"message; the limit for all arrays in a message combined is {limit} extra bytes "
                "(Limits.expanded_bytes)"
            )

    def take_strings(self, count: int, where: str) -> None:
        """Charge `count` strings; raise SpecError if over the limit."""
        self._strings -= count
        if self._strings < 0:
            raise _too_many(where, self._limits.strings, "strings", "strings")

    def take_messages(self, count: int, where: str) -> None:
        """Charge `count` messages in tensors or errors; raise SpecError if over the limit."""
        self._messages -= count
        if self._messages < 0:
            raise _too_many(where, self._limits.messages, "protobuf messages", "messages")

    def take_entries(self, count: int, where: str) -> None:
        """Charge `count` actions, observations or settings; raise SpecError if over the limit."""
        self._entries -= count
        if self._entries < 0:
            what = "actions, observations or settings"
            raise _too_many(where, self._limits.specs, what, "specs")

    def take_fields(self, count: int, where: str) -> None:
        """Charge `count` fields of any kind; raise SpecError if over the limit."""
        self._fields -= count
        if self._fields < 0:
            raise SpecError(
                f"{where}: the message has more fields than Limits.messages and Limits.specs allow"
            )


def largest_array(limits: Limits) -> int:
    """Return the maximum size, in bytes, that `limits` allow for an array in a message."""
    return limits.message_bytes + limits.expanded_bytes


def listed(known: Iterable[object]) -> str:
    """Return the first few names or UIDs for an error message, or "none" if there are none."""
    shown = [repr(one) for one in itertools.islice(known, _LISTED + 1)]
    if len(shown) > _LISTED:
        shown[_LISTED] = "..."
    return ", ".join(shown) or "none"


def shortened(text: str, size: int) -> str:
    """Truncate text that is longer than `size` bytes, and append its original size.

    Args:
      text: the text.
      size: the maximum size of the text in bytes, encoded as UTF-8.
    """
    if len(text) * 4 <= size:
        return text
    encoded = text.encode(errors="replace")
    if len(encoded) <= size:
        return text
    return f"{encoded[:size].decode(errors='ignore')}... ({len(encoded)} bytes)"


def sendable(text: str, size: int) -> str:
    """Shorten text as `shortened` does, and replace surrogates so that a message can contain it.

    Args:
      text: the text.
      size: the maximum size of the text in bytes, encoded as UTF-8.
    """
    short = shortened(text, size)
    return short if short.isascii() else short.encode(errors="replace").decode()


def described(error: BaseException, text_of: Callable[[BaseException], str] = str) -> str:
    """Return an error's type name and message, even if its `str` raises another error.

    Args:
      error: the error.
      text_of: a function that returns the message of the error. The result of `repr` already
        includes the type name.
    """
    name = type(error).__name__
    try:
        text = text_of(error)
    except Exception as failure:
        return f"{name}: (its message raised {type(failure).__name__})"
    return text if text_of is repr else f"{name}: {text}"


def _too_many(where: str, limit: int, what: str, name: str) -> SpecError:
    return SpecError(f"{where}: the message holds more than {limit} {what} (Limits.{name})")
