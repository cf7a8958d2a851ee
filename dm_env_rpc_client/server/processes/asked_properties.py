"""The properties of a server as its workers see them: they stay in the server's own process.

So a property has one value for all clients, and its getter and setter need not be pickled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.server.processes.messages import hear, say
from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.server.request_errors import refusal_of
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.tensors.limits import described


class AskedProperties(Properties):
    """Asks for every property.

    Args:
      pipe: to who answers.
    """

    def __init__(self, pipe: MessagePipe):
        super().__init__()
        self._pipe = pipe
        self._lock = make_lock()

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

    def _ask(self, *question: Any) -> Any:
        with self._lock:
            say(self._pipe, *question)
            (answer, error), _ = hear(self._pipe)
        if error is not None:
            raise error
        return answer


def answer_questions(properties: Properties, pipe: MessagePipe) -> None:
    """Answers until the other end is closed, and closes this one."""
    with contextlib.closing(pipe), contextlib.suppress(EOFError, OSError):
        while True:
            (method, *arguments), _ = hear(pipe)
            answer: Any = None
            refusal: Exception | None = None
            try:
                answer = getattr(properties, method)(*arguments)
            except Exception as error:
                refusal = refusal_of(error) or RuntimeError(described(error))
            say(pipe, answer, refusal)
