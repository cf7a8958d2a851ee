"""Messages between a process and the child process that runs its library.

A message consists of JSON and the bytes of the arrays that the JSON describes:

    uint32 length of the JSON, uint64 length of the bytes, JSON, bytes

A faulty library can write anything into the child's pipe, so messages from the child are
untrusted: lengths are checked first, nothing is unpickled, and only the dtypes of EnvCApi are
allowed. Names from the library are never used as keys of a JSON object, since an object with
arbitrary keys could be mistaken for the description of an array.

Answers are encoded field by field and validated against the type annotations of the fields. `Any`
stands for an observation: an array or a string.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import os
import select
import struct
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dm_env_rpc_client.bridges.env_c_api.context import Status
from dm_env_rpc_client.bridges.env_c_api.description import Description
from dm_env_rpc_client.bridges.env_c_api.runner import Frame
from dm_env_rpc_client.errors import (
    DmEnvRpcClientError,
    LibraryError,
    PropertyError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.system.waiting import Deadline
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits

_LENGTHS = struct.Struct("<IQ")

_MORE_BYTES = 1 << 24
"""The maximum overhead of names and array padding in a message, in bytes."""

_ALIGNMENT = 8

_DTYPES = {dtype.str: dtype for dtype in map(np.dtype, ("u1", "<i4", "<i8", "<f8"))}


class ChildPipe:
    """Two pipes that connect the parent and the child, one for each direction.

    Args:
      reader: the descriptor to read from; this object owns it.
      writer: the descriptor to write to; this object owns it.
      limits: limits for observations, including those of events.

    Attributes:
      limits: limits for observations; may be changed.
    """

    def __init__(self, reader: int, writer: int, limits: Limits = DEFAULT):
        self.limits = limits
        self._reader, self._writer = reader, writer
        # A blocking read could exceed the timeout in the middle of a message.
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)

    def send(self, message: Any, timeout: float | None = None) -> None:
        """Send a JSON value that may contain arrays.

        Raises:
          ProtocolError: the message exceeds the limits; nothing was sent.
          TimeoutError, BrokenPipeError: the message was not sent, or was sent only in part.
        """
        arrays: list[np.ndarray[Any, Any]] = []

        def describe(array: Any) -> dict[str, Any]:
            arrays.append(array)
            return {"dtype": array.dtype.str, "shape": list(array.shape)}

        text = json.dumps(message, default=describe).encode()
        size = sum(array.nbytes + -array.nbytes % _ALIGNMENT for array in arrays)
        self._check_lengths(len(text), size)
        pieces: list[Any] = []
        for array in arrays:
            flat = np.ascontiguousarray(array).reshape(-1)
            pieces += [flat.view(np.uint8).data, bytes(-array.nbytes % _ALIGNMENT)]
        deadline = Deadline.after(timeout)
        for piece in (_LENGTHS.pack(len(text), size) + text, *pieces):
            view = memoryview(piece)
            while view.nbytes:
                try:
                    view = view[os.write(self._writer, view) :]
                except BlockingIOError:
                    _wait(self._writer, select.POLLOUT, deadline)

    def receive(self, timeout: float | None = None) -> Any:
        """Return the next message, whose arrays are writable and do not overlap in memory.

        Raises:
          ProtocolError: the message is invalid.
          TimeoutError: the complete message did not arrive in time.
          EOFError: the other end has closed the pipe.
        """
        deadline = Deadline.after(timeout)
        lengths = bytearray(_LENGTHS.size)
        self._read(memoryview(lengths), deadline)
        text_size, size = _LENGTHS.unpack(lengths)
        self._check_lengths(text_size, size)
        text = bytearray(text_size)
        self._read(memoryview(text), deadline)
        data = np.empty(size, np.uint8)
        self._read(data.data, deadline)
        offset = 0

        def restore(described: dict[str, Any]) -> Any:
            nonlocal offset
            if described.keys() != {"dtype", "shape"}:
                return described
            dtype, shape = _DTYPES.get(described["dtype"]), described["shape"]
            if dtype is None or not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
                raise ValueError(
                    f"an array has shape {shape!r} and dtype {described['dtype']!r}; expected a "
                    f"list of at most {MAX_DIMENSIONS} sizes and a known dtype"
                )
            if not all(isinstance(length, int) and length >= 0 for length in shape):
                raise ValueError(f"an array has shape {shape!r}; expected sizes of 0 or more")
            end = offset + math.prod(shape) * dtype.itemsize
            if end > size:
                raise ValueError(
                    f"an array of {end - offset} bytes extends beyond the end of the message"
                )
            array = data[offset:end].view(dtype).reshape(shape)
            offset = end + -end % _ALIGNMENT
            return array

        try:
            return json.loads(text, object_hook=restore)
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"the pipe delivered an invalid message: {error}") from error

    def close(self) -> None:
        """Close both pipes; call this only once."""
        os.close(self._reader)
        os.close(self._writer)

    def _check_lengths(self, text_size: int, size: int) -> None:
        # Both parts may be this large: texts travel in the JSON, arrays in the bytes.
        most = 2 * self.limits.message_bytes + _MORE_BYTES
        if max(text_size, size) > most:
            raise ProtocolError(
                f"a message has {text_size} bytes of JSON and {size} bytes of arrays; at most "
                f"{most} of each are allowed (Limits.message_bytes)"
            )

    def _read(self, view: memoryview, deadline: Deadline) -> None:
        while view.nbytes:
            try:
                count = os.readv(self._reader, [view])
            except BlockingIOError:
                _wait(self._reader, select.POLLIN, deadline)
                continue
            if not count:
                raise EOFError("the other side has closed the pipe")
            view = view[count:]


def _wait(descriptor: int, event: int, deadline: Deadline) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    remaining = deadline.remaining
    if not poll.poll(None if remaining is None else math.ceil(remaining * 1000)):
        raise TimeoutError("timed out waiting for the pipe to the child process")


T = TypeVar("T")

_PLAIN = frozenset((str, int, float, bool, type(None), np.ndarray))


def encode(value: Any) -> Any:
    """Convert a value to JSON, with records as lists of fields and mappings as lists of pairs."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return [encode(each) for each in value]
    if isinstance(value, enum.Flag):
        return value.value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return [[key, encode(each)] for key, each in value.items()]
    if dataclasses.is_dataclass(value):
        return [encode(getattr(value, field.name)) for field in dataclasses.fields(value)]
    raise TypeError(f"cannot encode {value!r}")


def decode(type_: type[T], message: Any) -> T:
    """Reverse `encode`, or raise ProtocolError if the message does not match the type."""
    try:
        decoded: T = _decoder(type_)(message)  # type: ignore[arg-type]  # types are hashable
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise ProtocolError(f"the child process sent an invalid answer: {error}") from error
    return decoded


def decode_answer(type_: type[T], answer: Any) -> T | DmEnvRpcClientError:
    """Return the result or error in an answer, or raise ProtocolError if the answer is invalid."""
    if isinstance(answer, dict) and answer.keys() == {"error"}:
        return decode_error(answer["error"])
    if isinstance(answer, dict) and answer.keys() == {"result"}:
        return decode(type_, answer["result"])
    raise ProtocolError(
        "the child process sent an invalid answer; expected an object with 'result' or 'error'"
    )


def check_frame(frame: Frame, description: Description) -> None:
    """Raise ProtocolError if a frame does not match the description."""
    expected = description.observations if frame.status is Status.RUNNING else None
    if expected is None or frame.observations is None:
        fits = expected is None and frame.observations is None
    else:
        fits = len(frame.observations) == len(expected) and all(
            described.value_conforms(value)
            for described, value in zip(expected, frame.observations, strict=True)
        )
    if not fits:
        raise ProtocolError("the child process sent observations that do not fit the specs")
    for event in frame.events:
        if description.events[event.id : event.id + 1] != (event.name,):
            raise ProtocolError(f"the child process sent an event of unknown type {event.id}")


def encode_error(error: Exception) -> Any:
    """Return an error as JSON."""
    if isinstance(error, PropertyError):
        return ["PropertyError", [error.operation, error.key, error.code_name]]
    if isinstance(error, LibraryError):
        return ["LibraryError", list(error.args)]
    for known in (SpecError, ProtocolError):
        if isinstance(error, known):
            return [known.__name__, [str(error)]]
    return ["DmEnvRpcClientError", [f"{type(error).__name__}: {error}"]]


def decode_error(message: Any) -> DmEnvRpcClientError:
    """Reverse `encode_error`, or raise ProtocolError if the message is invalid."""
    try:
        name, arguments = message
        make, *types = _ERRORS[name]
        decoded = [decode(*each) for each in zip(types, arguments, strict=True)]
        error: DmEnvRpcClientError = make(*decoded)
        str(error)  # Invalid data make this fail, which must not happen to the caller.
    except (ValueError, TypeError, LookupError) as invalid:
        raise ProtocolError(f"the child process sent an invalid answer: {invalid}") from invalid
    return error


_ERRORS: dict[str, tuple[Any, ...]] = {
    "LibraryError": (LibraryError, str, int, str),
    "PropertyError": (PropertyError.of_result, str, str, str),
    "SpecError": (SpecError, str),
    "ProtocolError": (ProtocolError, str),
    "DmEnvRpcClientError": (DmEnvRpcClientError, str),
}


@functools.cache
def _decoder(type_: Any) -> Callable[[Any], Any]:
    """Return a function that validates and converts the JSON values of a type."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if type(None) in arguments:
        given = _decoder(arguments[0])
        return lambda message: None if message is None else given(message)
    if origin is dict:
        decode_key, decode_value = map(_decoder, arguments)
        return lambda message: {decode_key(key): decode_value(value) for key, value in message}
    if origin in (list, tuple):
        element = _decoder(arguments[0])
        return lambda message: origin([element(each) for each in _checked(list, message)])
    if dataclasses.is_dataclass(type_) or hasattr(type_, "_fields"):
        fields = [_decoder(hint) for hint in typing.get_type_hints(type_).values()]
        return lambda message: type_(
            *[field(value) for field, value in zip(fields, message, strict=True)]
        )
    if isinstance(type_, type) and issubclass(type_, enum.Flag):
        return lambda message: type_(_checked(int, message))
    if isinstance(type_, type) and issubclass(type_, enum.Enum):
        return lambda message: type_[message]
    expected = (str, np.ndarray) if type_ is Any else type_
    return lambda message: _checked(expected, message)


def _checked(type_: Any, value: Any) -> Any:
    if isinstance(value, type_) and (type(value) is not bool or type_ is bool):
        return value
    raise TypeError(f"expected {type_}, got {value!r}")
