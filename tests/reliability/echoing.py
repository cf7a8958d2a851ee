"""Servers that answer extensions with themselves: the package's own, and one of grpcio.

Clients meet both: `serve` listens with the package's own HTTP/2, and servers of other makers are
made with gRPC.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.protobuf import wrappers_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client.server import serve
from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.support.environments import Echo
from tests.support.scripted import number_of

SERVERS = ["serve", "grpcio"]


class Echoing(NamedTuple):
    """A running server."""

    address: str

    count_streams: Callable[[], int]

    @property
    def open_streams(self) -> int:
        return self.count_streams()


@contextlib.contextmanager
def echoing(
    server: str, *, delays: Callable[[int], float] | None = None, refuses: int | None = None
) -> Iterator[Echoing]:
    """Runs a server.

    Args:
      server: one of `SERVERS`.
      delays: the seconds after which an extension of this number is answered.
      refuses: the last digit of the numbers that are answered with the error ABORTED, whose text is
        the number.
    """

    def is_refused(number: int) -> bool:
        if delays is not None:
            time.sleep(delays(number))  # It takes time to answer.
        return refuses is not None and number % 10 == refuses

    def answer(message: wrappers_pb2.StringValue, world: object) -> wrappers_pb2.StringValue:
        if is_refused(int(message.value)):
            raise RequestError(code_pb2.ABORTED, message.value)
        return message

    def script(requests: Iterator[Request], context: Any) -> Iterator[Response]:
        for request in requests:
            number = number_of(request.extension)
            if is_refused(number):
                yield Response(error=status_pb2.Status(code=code_pb2.ABORTED, message=str(number)))
            else:
                yield Response(extension=request.extension)
            scripted.requests.clear()

    if server == "serve":
        extensions: dict[type[Message], Any] = {wrappers_pb2.StringValue: answer}
        with serve(Echo, transport="http2", extensions=extensions) as own:
            yield Echoing(own.address, lambda: own.stats().streams)
            assert own.errors == []
    else:
        with ScriptedServer(script) as scripted:
            yield Echoing(scripted.address, lambda: scripted.open_streams)
