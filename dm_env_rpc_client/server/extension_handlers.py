"""Answers extensions: messages of the types that were registered with the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import any_pb2
from google.protobuf import message as protobuf_message
from google.rpc import code_pb2

from dm_env_rpc_client.protocol.envelopes import DECODE_ERRORS
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.limits import Budget, Limits

__all__ = ["ExtensionHandlers"]

Handler = Callable[[Any, World | None], protobuf_message.Message]


class ExtensionHandlers:
    """Dispatches extensions by the type of their message.

    Args:
      handlers: functions by message class. A function is called with a message of the class
        and the world that the connection is joined to, or None, and returns the answer.
    """

    def __init__(self, handlers: Mapping[type[protobuf_message.Message], Handler]):
        self._handlers = {
            message_class.DESCRIPTOR.full_name: (message_class, handler)
            for message_class, handler in handlers.items()
        }

    def handle(self, request: any_pb2.Any, world: World | None, limits: Limits) -> any_pb2.Any:
        """Unpacks a request, calls its handler and packs the answer.

        Args:
          request: the packed message.
          world: the world that the connection is joined to, or None.
          limits: what the message may contain.

        Raises:
          RequestError: the type is unknown, or the message cannot be parsed.
        """
        known = self._handlers.get(request.TypeName())
        if known is None:
            names = ", ".join(self._handlers) or "none"
            raise RequestError(
                code_pb2.UNIMPLEMENTED,
                f"this server has no extension {request.type_url!r}; extensions: {names}",
            )
        message_class, handler = known
        try:
            message = bounded_parsing.parse(
                message_class, request.value, Budget(limits), f"{request.type_url!r}"
            )
        except DECODE_ERRORS as error:
            raise RequestError.invalid(f"{request.type_url!r} cannot be parsed: {error}") from error
        answer = any_pb2.Any()
        answer.Pack(handler(message, world))
        return answer
