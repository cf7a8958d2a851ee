"""The properties of a server as its workers see them: they stay in the server's own process.

So a property has one value for all clients, and its getter and setter need not be pickled.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from typing import Any

from google.rpc import code_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.offered_properties import Properties
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.system.message_pipe import MessagePipe

__all__ = ["AskedProperties", "answer_questions"]


class AskedProperties(Properties):
    """Asks for every property.

    Args:
      pipe: to who answers.
    """

    def __init__(self, pipe: MessagePipe):
        super().__init__()
        self._pipe = pipe
        self._lock = threading.Lock()

    def read(self, key: str) -> dm_env_rpc_pb2.Tensor:
        """See `Properties.read`."""
        return dm_env_rpc_pb2.Tensor.FromString(self._ask("read", key))

    def write(self, key: str, tensor: dm_env_rpc_pb2.Tensor) -> None:
        """See `Properties.write`."""
        self._ask("write", key, tensor.SerializeToString())

    def list(self, key: str) -> list[properties_pb2.PropertySpec]:
        """See `Properties.list`."""
        return [properties_pb2.PropertySpec.FromString(spec) for spec in self._ask("list", key)]

    def knows(self, key: str) -> bool:
        """See `Properties.knows`."""
        known: bool = self._ask("knows", key)
        return known

    def _ask(self, *question: Any) -> Any:
        with self._lock:
            self._pipe.send(pickle.dumps(question))
            code, answer = pickle.loads(self._pipe.receive().message)
        if code == code_pb2.OK:
            return answer
        if code == code_pb2.UNKNOWN:
            raise RuntimeError(answer)
        raise RequestError(code, answer)


def answer_questions(properties: Properties, pipe: MessagePipe) -> None:
    """Answers until the other end is closed."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            question = pickle.loads(pipe.receive().message)
            try:
                answer = code_pb2.OK, _answer(properties, *question)
            except RequestError as error:
                answer = error.code, str(error)
            except SpecError as error:
                answer = code_pb2.INVALID_ARGUMENT, str(error)
            except Exception as error:
                answer = code_pb2.UNKNOWN, f"{type(error).__name__}: {error}"
            pipe.send(pickle.dumps(answer))


def _answer(properties: Properties, what: str, key: str, *value: bytes) -> Any:
    if what == "read":
        return properties.read(key).SerializeToString()
    if what == "write":
        return properties.write(key, dm_env_rpc_pb2.Tensor.FromString(*value))
    if what == "list":
        return [spec.SerializeToString() for spec in properties.list(key)]
    return properties.knows(key)
