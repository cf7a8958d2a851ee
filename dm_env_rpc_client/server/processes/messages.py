"""Messages between the processes of one server: pickled tuples and open descriptors."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NamedTuple

from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.tensors.memory_limits import described


def send_message(pipe: MessagePipe, *message: Any, descriptor: int | None = None) -> None:
    """Send a message and an open descriptor, or raise OSError if the other end is closed."""
    pipe.send(pickle.dumps(message), descriptor=descriptor)


def receive_message(pipe: MessagePipe) -> tuple[tuple[Any, ...], int | None]:
    """Wait for a message and its descriptor, if any; the caller must close the descriptor.

    Raises:
      EOFError: the other end is closed.
      OSError: this end is closed.
    """
    received = pipe.receive()
    return pickle.loads(received.message), received.descriptor


class Requests:
    """Requests over a pipe. Answers have no ids: each answer is that to the oldest request.

    Args:
      pipe: a pipe on which the other end only answers.

    Attributes:
      pipe: as the argument.
      is_awaited: whether a request was begun and its answer was not received.
    """

    def __init__(self, pipe: MessagePipe):
        self.pipe = pipe
        self.is_awaited = False

    def begin(self, message: bytes, descriptor: int | None = None) -> None:
        """Send a request, or raise OSError if a pipe is closed.

        If the answer to the last request was never received, as after an interrupt, the pipe is
        closed: that answer would be taken for the answer to this request.
        """
        if self.is_awaited:
            self.pipe.shut_down()
        self.is_awaited = True
        self.pipe.send(message, descriptor=descriptor)

    def end(self) -> bytearray:
        """Wait for the answer. The caller unpickles it after all other answers have been received.

        Raises:
          EOFError, OSError: as `receive_message`.
        """
        message = self.pipe.receive().message
        self.is_awaited = False
        return message


class _RaisedInWorkerError(Exception):
    """The cause of an exception from a worker; its message is the worker's traceback."""


class PackedError(NamedTuple):
    """An exception in a form that can be sent to another process."""

    pickled: bytes
    shown: str
    where: str

    @classmethod
    def of(cls, error: BaseException) -> PackedError:
        """Pack an exception, even if its class cannot be pickled."""
        # As text: tracebacks cannot be pickled.
        where = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        shown = described(error)
        try:
            pickled = pickle.dumps(error)
        except BaseException:  # Of user code; `error` is what happened.
            pickled = pickle.dumps(RuntimeError(shown))
        return cls(pickled, shown, where)

    def unpacked(self) -> BaseException:
        """Return the exception, or one with the same message if its class cannot be imported."""
        # Unpickling imports the class, which may exist only in the worker.
        try:
            error: BaseException = pickle.loads(self.pickled)
        except BaseException:
            error = RuntimeError(self.shown)
        error.__cause__ = _RaisedInWorkerError(f"in a worker process:\n{self.where}")
        return error
