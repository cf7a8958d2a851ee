"""The listener on grpcio's server."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc

from dm_env_rpc_client.transports import status
from dm_env_rpc_client.transports.listening import listen
from dm_env_rpc_client.transports.server_streams import (
    OpenStream,
    Peer,
    Refused,
    ServerStream,
    StreamStatusError,
    full_error,
)
from dm_env_rpc_client.transports.services.table import open_own
from dm_env_rpc_client.transports.streams import MAX_MESSAGE_BYTES
from dm_env_rpc_client.transports.tls import Tls

_MIN_PING_INTERVAL_MS = 5_000
"""Clients send pings during long steps; see the keepalive options of the channels."""

_REFUSED_AT_ONCE = 64
"""Streams that are being refused; grpcio refuses those beyond them itself, and tells nobody."""


class GrpcListener:
    """A `Listener` on a grpc.Server.

    Args:
      open_stream: makes the server's end of each stream.
      address: `host:port` or `unix:path`; port 0 takes a free one.
      credentials: TLS credentials; None for plaintext.
      max_streams: streams beyond this are refused with RESOURCE_EXHAUSTED.
      max_message_bytes: the size of the largest request.
      refused: told of each stream beyond `max_streams`.

    Raises:
      OSError: the address is taken, or does not belong to this machine.
      SpecError: a file of `credentials` cannot be read, or it has no certificate.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        address: str,
        credentials: grpc.ServerCredentials | Tls | None,
        max_streams: int,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        refused: Refused = lambda *_: None,
    ):
        if isinstance(credentials, Tls):
            credentials = credentials.server_credentials()
        self._server = grpc.server(
            # The annotation asks for a ThreadPoolExecutor; grpcio only uses `submit`.
            cast("Any", _ThreadPerStream()),
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
            ],
            # Those beyond `max_streams` are refused in their threads, which are limited, too.
            maximum_concurrent_rpcs=2 * max_streams + _REFUSED_AT_ONCE,
        )
        handler: Any = grpc.stream_stream_rpc_method_handler(
            functools.partial(_process, open_stream, _Room(max_streams, refused))
        )
        service, method = status.PROCESS.strip("/").split("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}), _OwnHandler())
        )
        self.address = listen(functools.partial(self._add_port, credentials), address)
        self._server.start()

    def wait(self, timeout: float | None = None) -> bool:
        """See `Listener.wait`."""
        return not self._server.wait_for_termination(timeout)

    def stop(self, grace: float) -> None:
        """See `Listener.stop`."""
        self._server.stop(grace).wait()

    def abort(self) -> None:
        """See `Listener.abort`."""
        self._server.stop(None)

    def _add_port(self, credentials: grpc.ServerCredentials | None, address: str) -> int:
        if credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, credentials)


class _OwnHandler(grpc.GenericRpcHandler):
    """Answers the methods of the services that every server has."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """See `grpc.GenericRpcHandler`."""
        found = open_own(handler_call_details.method)
        if found is None:
            return None
        if found.is_unary:
            return grpc.unary_unary_rpc_method_handler(functools.partial(_check, found.stream))
        if found.stays:
            return grpc.unary_stream_rpc_method_handler(functools.partial(_watch, found.stream))
        return grpc.stream_stream_rpc_method_handler(functools.partial(_converse, found.stream))


def _check(stream: ServerStream, message: bytes, context: grpc.ServicerContext) -> bytes:
    try:
        return stream.answer(message)
    except StreamStatusError as error:
        context.abort(grpc.StatusCode[error.code], str(error))


def _converse(
    stream: ServerStream, requests: Iterator[bytes], context: grpc.ServicerContext
) -> Iterator[bytes]:
    for message in requests:
        yield _check(stream, message, context)


def _watch(stream: ServerStream, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    has_ended = threading.Event()
    if context.add_callback(has_ended.set):
        yield stream.answer(message)
        has_ended.wait()


class _Room:
    """Counts streams, of which there may be a limited number."""

    def __init__(self, max_streams: int, refused: Refused):
        self._max_streams = max_streams
        self._refused = refused
        self._count = 0
        self._lock = threading.Lock()

    def enter(self, client: str) -> None:
        """Counts a stream; StreamStatusError if there are too many."""
        with self._lock:
            is_full = self._count >= self._max_streams
            self._count += not is_full
        if is_full:
            full = full_error(self._max_streams)
            self._refused(client, f"{full.code}: {full}")
            raise full

    def leave(self) -> None:
        """A stream that was counted has ended."""
        with self._lock:
            self._count -= 1


def _process(
    open_stream: OpenStream,
    room: _Room,
    requests: Iterator[bytes],
    context: grpc.ServicerContext,
) -> Iterator[bytes]:
    try:
        room.enter(context.peer())
    except StreamStatusError as error:
        context.abort(grpc.StatusCode[error.code], str(error))
    try:
        yield from _answers(open_stream, requests, context)
    finally:
        room.leave()


def _answers(
    open_stream: OpenStream, requests: Iterator[bytes], context: grpc.ServicerContext
) -> Iterator[bytes]:
    metadata = tuple((key, value) for key, value in context.invocation_metadata())
    try:
        stream = open_stream(Peer(context.peer(), metadata))
    except StreamStatusError as error:
        context.abort(grpc.StatusCode[error.code], str(error))
    if not context.add_callback(stream.abandon):
        stream.abandon()
    try:
        for message in requests:
            try:
                answer = stream.answer(message)
            except StreamStatusError as error:
                context.abort(grpc.StatusCode[error.code], str(error))
            yield answer
    finally:
        stream.close()


class _ThreadPerStream(concurrent.futures.Executor):
    """Runs each stream in a daemon thread of its own.

    A stream keeps its thread until it ends, so a pool would have nothing to reuse, and the
    threads of concurrent.futures would prevent an interpreter with open streams from exiting.
    """

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="dm_env_rpc stream", daemon=True).start()
        return future
