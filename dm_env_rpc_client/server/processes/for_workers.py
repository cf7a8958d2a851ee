"""Requests from workers to the server's own process, which answers them for all workers.

Some requests concern the properties of the server. Because only the server's own process answers
them, each property has one value for all clients, and its getter and setter need not be pickled.
Other requests concern the names and limits of the worlds of all workers.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.server.errors import refusal_of
from dm_env_rpc_client.server.processes.messages import Requests, receive_message, send_message
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.worlds.world_registry import Share
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.tensors.memory_limits import described


class _Questions:
    """A proxy for an object in the server's own process.

    Args:
      pipe: the pipe to that process.
    """

    def __init__(self, pipe: MessagePipe):
        self._requests = Requests(pipe)
        self._lock = make_lock()

    def ask(self, *question: Any) -> Any:
        """Call a method of the object, and return its result or raise its error.

        Raises:
          OSError, EOFError: the server's own process has ended.
        """
        message = pickle.dumps(question)
        # One request at a time: answers have no ids.
        with self._lock:
            self._requests.begin(message)
            received = self._requests.end()
        answer, error = pickle.loads(received)
        if error is not None:
            raise error
        return answer


class AskedProperties(Properties):
    """The properties of the server, accessed through requests to the server's own process.

    Args:
      pipe: the pipe to that process.
    """

    def __init__(self, pipe: MessagePipe):
        super().__init__()
        self._ask = _Questions(pipe).ask

    def read(self, key: str) -> dm_env_rpc_pb2.Tensor:
        tensor: dm_env_rpc_pb2.Tensor = self._ask("read", key)
        return tensor

    def write(self, key: str, tensor: dm_env_rpc_pb2.Tensor) -> None:
        self._ask("write", key, tensor)

    def list(self, key: str) -> list[properties_pb2.PropertySpec]:
        below: list[properties_pb2.PropertySpec] = self._ask("list", key)
        return below

    def knows(self, key: str) -> bool:
        return bool(self._ask("knows", key))

    def _keys(self) -> Sequence[str]:
        keys: Sequence[str] = self._ask("_keys")
        return keys


class AskedShare(Share):
    """This worker's share of the limits and its world names, managed by the server's own process.

    Args:
      pipe: the pipe to that process.
    """

    def __init__(self, pipe: MessagePipe):
        super().__init__()
        self._ask = _Questions(pipe).ask

    def add(self, name: str, count: int) -> None:
        # Without that process, the worker is about to end, and its worlds are closed regardless.
        with _unless_gone():
            self._ask("add", name, count)

    def total(self, name: str) -> int:
        return int(self._ask("total", name))

    def new_name(self) -> str:
        return str(self._ask("new_name"))

    def forget(self, name: str) -> None:
        with _unless_gone():
            self._ask("forget", name)

    def missing(self, name: str, known: Iterable[str]) -> str:
        # Without this process's names: the other one knows the worlds of all workers.
        return str(self._ask("missing", name, ()))


def _unless_gone() -> contextlib.AbstractContextManager[None]:
    """Return a context that ignores errors caused by the end of the server's own process."""
    return contextlib.suppress(OSError, EOFError)


def answer_questions(asked: Properties | Share, pipe: MessagePipe) -> None:
    """Answer requests until the other end of a pipe is closed, and then close this end."""
    with contextlib.closing(pipe), contextlib.suppress(EOFError, OSError):
        while True:
            (method, *arguments), _ = receive_message(pipe)
            answer: Any = None
            refusal: Exception | None = None
            try:
                answer = getattr(asked, method)(*arguments)
            except Exception as error:
                # Exceptions of getters and setters may not be picklable; refusals are.
                refusal = refusal_of(error) or RuntimeError(described(error))
            send_message(pipe, answer, refusal)
