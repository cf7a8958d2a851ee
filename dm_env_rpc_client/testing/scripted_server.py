"""A server that runs a script provided by a test.

This file is the only one in `dm_env_rpc_client/testing` that imports grpc.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import grpc
from google.protobuf import message as protobuf_message
from google.rpc import status_pb2

from dm_env_rpc_client.errors import DmEnvRpcError
from dm_env_rpc_client.protocol.envelopes import (
    EnvironmentRequest,
    EnvironmentResponse,
    answer_field,
)
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.grpc.server import add_port
from dm_env_rpc_client.transports.net import status
from dm_env_rpc_client.transports.net.listening import listen

Request = EnvironmentRequest
Response = EnvironmentResponse
Script = Callable[[Iterator[Request], grpc.ServicerContext], Iterable[Response | bytes]]
"""A function that maps the requests and context of a stream to its responses or raw bytes."""

Answer: TypeAlias = protobuf_message.Message | bytes | DmEnvRpcError | None

_STREAMS = 64
"""The maximum number of streams that can be open at once."""

_STOP_SECONDS = 0.1


class ScriptedServer:
    """A real gRPC server on the loopback interface that runs a script for each stream.

    It does not check the protocol: it sends the responses of the script unchanged and in order.
    When the script returns, the stream ends normally; when it raises, the stream ends with an
    error.

    with ScriptedServer(answering(StepResponse(state=1))) as server:
        connect(server.address).send(StepRequest())

    Args:
      script: called once for each stream with an iterator over its requests and the
        grpc.ServicerContext; yields EnvironmentResponses, or bytes. See `answering`.
      credentials: grpc.ServerCredentials; None for plaintext.

    Attributes:
      address: the listening address, such as "localhost:40123".
      requests: the requests that scripts have read so far, of all streams.
      errors: the exceptions raised by scripts, oldest first.
      open_streams: the number of running scripts.
    """

    def __init__(self, script: Script, credentials: grpc.ServerCredentials | None = None):
        self.requests: list[Request] = []
        self.errors: list[BaseException] = []
        self.open_streams = 0
        self._script = script
        self._lock = make_lock()
        self._executor = concurrent.futures.ThreadPoolExecutor(_STREAMS)
        self._server = grpc.server(self._executor, options=[("grpc.so_reuseport", 0)])
        handler: Any = grpc.stream_stream_rpc_method_handler(self._process, Request.FromString)
        service, method = status.PROCESS.strip("/").split("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        bind = functools.partial(add_port, self._server, credentials)
        self.address = listen(bind, "localhost:0")
        self._server.start()

    def stop(self) -> None:
        """End all open streams and stop the server.

        A second call does nothing.
        """
        self._server.stop(_STOP_SECONDS).wait()
        self._executor.shutdown()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _process(
        self, requests: Iterator[Request], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        with self._lock:
            self.open_streams += 1
        try:
            for response in self._script(self._recorded(requests), context):
                yield response if isinstance(response, bytes) else response.SerializeToString()
        except Exception as error:
            self.errors.append(error)
            raise
        finally:
            with self._lock:
                self.open_streams -= 1

    def _recorded(self, requests: Iterator[Request]) -> Iterator[Request]:
        for request in requests:
            self.requests.append(request)
            yield request


def answering(*answers: Answer) -> Script:
    """Return a script that answers each request with the next of `answers`.

    Args:
      *answers: for each request in turn, a payload such as `StepResponse`, a whole
        EnvironmentResponse, bytes to send unchanged, a DmEnvRpcError to send as a Status, or None
        for no answer. The stream ends after the last answer.
    """

    def script(requests: Iterator[Request], _: grpc.ServicerContext) -> Iterator[Response | bytes]:
        for answer, _request in zip(answers, requests, strict=False):
            if isinstance(answer, DmEnvRpcError):
                status = status_pb2.Status(
                    code=answer.code, message=answer.message, details=answer.details
                )
                yield Response(error=status)
            elif isinstance(answer, bytes | Response):
                yield answer
            elif answer is not None:
                response = Response()
                payload = getattr(response, answer_field(answer))
                payload.SetInParent()
                payload.MergeFrom(answer)
                yield response

    return script


def echo(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
    """Answer each request with a response that contains the same extension message.

    Args:
      requests: the requests of the stream.
      context: the context of the call.

    Yields:
      A response with the extension of each request.
    """
    for request in requests:
        yield Response(extension=request.extension)
