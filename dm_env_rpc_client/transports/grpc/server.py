"""A listener that uses grpcio's server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc

from dm_env_rpc_client.system.waiting import InterruptibleEvent, release, uninterrupted
from dm_env_rpc_client.transports.grpc.channel import MAX_FRAME_BYTES, WINDOW_BYTES
from dm_env_rpc_client.transports.grpc.forked import check_works
from dm_env_rpc_client.transports.net import status
from dm_env_rpc_client.transports.net.credentials import Tls
from dm_env_rpc_client.transports.net.listening import listen, try_to_bind
from dm_env_rpc_client.transports.server_streams import (
    Listener,
    ListenerOptions,
    Peer,
    Room,
    ServerStream,
    StreamStatusError,
    answer_by_owner,
    close_by_owner,
)
from dm_env_rpc_client.transports.services import open_own

_MIN_PING_INTERVAL_MS = 5_000
"""The minimum interval, in milliseconds, at which a client may send keepalive pings during long
steps."""

_NO_KEEPALIVE_MS = (1 << 31) - 1

_CANCELLED_SECONDS = 5.0
"""The time limit, in seconds, for cancelled streams to end when the server stops."""

_REFUSED_AT_ONCE = 64
"""The number of streams that can be refused with a reason at the same time. grpcio silently
refuses any further streams."""


class GrpcListener(Listener):
    """A `Listener` that uses a grpc.Server.

    Args:
      options: the streams to serve, and their limits.
      address: `host:port` or `unix:path`; port 0 selects a free port.
      credentials: TLS credentials; None for plaintext.

    Raises:
      OSError: the address is in use or is not an address of this machine.
      SpecError: a file of `credentials` cannot be read, or `credentials` contains no certificate.
    """

    def __init__(
        self,
        options: ListenerOptions,
        address: str,
        credentials: grpc.ServerCredentials | Tls | None,
    ):
        check_works(f"cannot listen on {address}")
        if isinstance(credentials, Tls):
            credentials = credentials.server_credentials()
        # In a thread of its own: a server whose start was interrupted cannot be stopped or freed.
        make = functools.partial(_started, options, address, credentials)
        self._server, self.address = uninterrupted(make, lambda made: made[0].stop(None))
        self._stopped = InterruptibleEvent()

    def wait(self, timeout: float | None = None) -> bool:
        # That of grpcio is left locked if a signal's handler raises at the wrong point.
        return self._stopped.wait(timeout)

    def stop(self, grace: float) -> None:
        try:
            uninterrupted(lambda: self._server.stop(grace).wait(grace + _CANCELLED_SECONDS))
        finally:
            self._stopped.set()

    def abort(self) -> None:
        release(lambda: self._server.stop(None))
        self._stopped.set()


def _started(
    options: ListenerOptions, address: str, credentials: grpc.ServerCredentials | None
) -> tuple[grpc.Server, str]:
    """Return a grpcio server that listens, and the address with the actual port."""
    server = grpc.server(
        # The annotation asks for a ThreadPoolExecutor; grpcio only uses `submit`.
        cast("Any", _ThreadPerStream()),
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", options.max_message_bytes),
            ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
            # A client does not answer PINGs or take answers while it trains. So there are no PINGs
            # that measure the bandwidth, which have a timeout of 60 s, and no TCP_USER_TIMEOUT,
            # which is 20 s unless keepalive is turned off.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
            ("grpc.keepalive_time_ms", _NO_KEEPALIVE_MS),
        ],
        # Streams beyond `max_streams` are refused in their own threads, which are limited, too.
        maximum_concurrent_rpcs=2 * options.max_streams + _REFUSED_AT_ONCE,
    )
    handler: Any = grpc.stream_stream_rpc_method_handler(
        functools.partial(_process, options, Room(options))
    )
    service, method = status.PROCESS.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}), _OwnHandler())
    )
    address = listen(functools.partial(add_port, server, credentials), address)
    server.start()
    return server, address


def add_port(server: grpc.Server, credentials: grpc.ServerCredentials | None, address: str) -> int:
    """Make a grpcio server listen on an additional address, and return the port.

    Args:
      server: a server that has not been started.
      credentials: gRPC credentials, or None for plaintext.
      address: the address, in gRPC's syntax.

    Raises:
      OSError: the address is in use or is not an address of this machine.
    """
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        # grpcio reports the cause only in its log.
        try_to_bind(address)
        raise OSError(str(error)) from error


class _OwnHandler(grpc.GenericRpcHandler):
    """The handler of the services that every server offers."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        found = open_own(handler_call_details.method)
        if found is None:
            return None
        if found.is_unary:
            return grpc.unary_unary_rpc_method_handler(functools.partial(_check, found.stream))
        if found.stays:
            return grpc.unary_stream_rpc_method_handler(functools.partial(_watch, found.stream))
        return grpc.stream_stream_rpc_method_handler(functools.partial(_converse, found.stream))


@contextlib.contextmanager
def _status_for(context: grpc.ServicerContext) -> Iterator[None]:
    """End the call with the status of a StreamStatusError that the `with` block raises."""
    try:
        yield
    except StreamStatusError as error:
        context.abort(grpc.StatusCode[error.code], str(error))


def _check(stream: ServerStream, message: bytes, context: grpc.ServicerContext) -> Any:
    with _status_for(context):
        return stream.answer(message)


def _converse(
    stream: ServerStream, requests: Iterator[bytes], context: grpc.ServicerContext
) -> Iterator[bytes]:
    with _status_for(context):
        for message in requests:
            yield answer_by_owner(stream, message)


def _watch(stream: ServerStream, message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    has_ended = threading.Event()
    if context.add_callback(has_ended.set):
        yield stream.answer(message)
        has_ended.wait()


def _process(
    options: ListenerOptions,
    room: Room,
    requests: Iterator[bytes],
    context: grpc.ServicerContext,
) -> Iterator[bytes]:
    with _status_for(context):
        room.enter(context.peer())
    stream = None
    try:
        metadata = tuple((key, value) for key, value in context.invocation_metadata())
        with _status_for(context):
            stream = options.open_stream(Peer(context.peer(), metadata))
        # Another thread cannot set the status of a call: the client reads CANCELLED.
        room.admit(stream, lambda error: context.cancel())
        if not context.add_callback(stream.abandon):
            stream.abandon()
        try:
            yield from _converse(stream, requests, context)
        finally:
            close_by_owner(stream)
    finally:
        room.leave(stream)


class _ThreadPerStream(concurrent.futures.Executor):
    """An executor that runs each stream in its own daemon thread.

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
