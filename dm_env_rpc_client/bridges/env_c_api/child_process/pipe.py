"""Messages between a process and the child that runs a library for it.

A message is JSON, followed by the bytes of the arrays that the JSON describes:

    uint32 length of the JSON, uint64 length of the bytes, JSON, bytes

A faulty library can write anything into the child's pipe, so its messages are untrusted:
lengths are checked first, nothing is unpickled, and only the dtypes of the interface are
allowed. Names from the library are never keys of a JSON object, since such an object could
look like the description of an array.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
from typing import Any

import numpy as np

from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.system.deadline import Deadline
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits

_LENGTHS = struct.Struct("<IQ")

_MORE_BYTES = 1 << 24
"""Of a message, beyond its observations and those of its events: names, padding of arrays."""

_ALIGNMENT = 8

_DTYPES = {dtype.str: dtype for dtype in map(np.dtype, ("u1", "<i4", "<i8", "<f8"))}


class ChildPipe:
    """Two pipes, one for each direction.

    Args:
      reader: the descriptor to read from; this object owns it.
      writer: the descriptor to write to; this object owns it.
      limits: of the observations, and of those of events.

    Attributes:
      limits: as the argument; may be changed.
    """

    def __init__(self, reader: int, writer: int, limits: Limits = DEFAULT):
        self.limits = limits
        self._reader, self._writer = reader, writer
        # So that a timeout also applies in the middle of a message.
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)

    def send(self, message: Any, timeout: float | None = None) -> None:
        """Sends a JSON value that may contain arrays.

        Raises:
          ProtocolError: the message exceeds the limits; nothing was sent.
          TimeoutError, BrokenPipeError: it was not sent, or only in part.
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
        """Returns the next message; its arrays are writable and share no memory.

        Raises:
          ProtocolError: it is invalid.
          TimeoutError: it did not arrive in time, or only in part.
          EOFError: the other side has closed the pipe.
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
                raise ValueError(f"an array of shape {shape!r} and dtype {described['dtype']!r}")
            if not all(isinstance(length, int) and length >= 0 for length in shape):
                raise ValueError(f"an array of shape {shape!r}")
            end = offset + math.prod(shape) * dtype.itemsize
            if end > size:
                raise ValueError(f"an array of {end - offset} bytes, beyond the end")
            array = data[offset:end].view(dtype).reshape(shape)
            offset = end + -end % _ALIGNMENT
            return array

        try:
            return json.loads(text, object_hook=restore)
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(f"an invalid message came through the pipe: {error}") from error

    def close(self) -> None:
        """Closes both ends; call it once."""
        os.close(self._reader)
        os.close(self._writer)

    def _check_lengths(self, text_size: int, size: int) -> None:
        # Both of the JSON, where texts are, and of the arrays.
        most = 2 * self.limits.message_bytes + _MORE_BYTES
        if max(text_size, size) > most:
            raise ProtocolError(
                f"a message of {text_size} bytes of JSON and {size} bytes of arrays; at most "
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
        raise TimeoutError("the pipe made no progress")
