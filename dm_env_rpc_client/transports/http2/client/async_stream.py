"""The stream over HTTP/2 on a plain socket, for coroutines.

The event loop reads into the memory of the framing, also while no coroutine waits, so that answers
that are not read yet do not keep the server from reading requests.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from dm_env_rpc_client.errors import ConnectionClosedError, ConnectionLostError, DmEnvRpcClientError
from dm_env_rpc_client.system.threads import in_thread
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.http2.client.keepalive import LOOK_SECONDS, Keepalive, Verdict
from dm_env_rpc_client.transports.http2.protocol.client_half import ClientHalf
from dm_env_rpc_client.transports.http2.protocol.headers import SentHeader, request_headers
from dm_env_rpc_client.transports.net.addresses import Target
from dm_env_rpc_client.transports.net.attempts import RETRY_SECONDS, Attempts, HandshakeError
from dm_env_rpc_client.transports.net.sockets import (
    explain_end,
    resolved,
    seconds_to_accept,
    set_options,
    tls_context,
)
from dm_env_rpc_client.transports.net.status import NO_HTTP2, silent
from dm_env_rpc_client.transports.streams import Allocate, AsyncStream, Buffer, plain_memory

_PAUSE_BYTES = 64 << 20
"""Answers that wait to be taken; above this the socket is not read until some are."""


async def open_http2_stream_async(
    endpoint: Endpoint, timeout: float | None, allocate: Allocate = plain_memory
) -> AsyncHttp2Stream:
    """Opens a stream; arguments and errors are those of `Http2Stream`."""
    address = endpoint.address
    target = Target.parse(address)
    tls = tls_context(endpoint.credentials, address)
    headers = request_headers(target, tls is not None, endpoint.metadata)
    attempts = Attempts(address, timeout)
    while True:
        half = ClientHalf(address, endpoint.max_message_bytes, allocate)
        stream = AsyncHttp2Stream(half, headers)
        try:
            await asyncio.wait_for(
                _open(stream, target, tls, attempts, endpoint.stays_on_loopback), attempts.remaining
            )
            return stream
        except ConnectionLostError as error:
            stream.abort()
            if tls is not None:
                failure: OSError = HandshakeError(stream.alert or error)
            else:
                failure = await in_thread(explain_end, error, attempts)
            attempts.failed(failure)
        except (OSError, asyncio.TimeoutError) as error:
            stream.abort()
            attempts.failed(error if isinstance(error, OSError) else TimeoutError())
        except BaseException:
            stream.abort()
            raise
        await asyncio.sleep(RETRY_SECONDS)


async def _open(
    stream: AsyncHttp2Stream,
    target: Target,
    tls: ssl.SSLContext | None,
    attempts: Attempts,
    loopback_only: bool,
) -> None:
    connected = await _connect(target, attempts, loopback_only)
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: stream,
            sock=connected,
            ssl=tls,
            server_hostname=(target.host or "localhost") if tls else None,
        )
    except BaseException as error:
        connected.close()
        if tls is not None and isinstance(error, OSError) and not isinstance(error, TimeoutError):
            raise HandshakeError(error) from error
        raise
    if tls is not None and not stream.has_alpn:
        raise HandshakeError(NO_HTTP2)
    await stream.wait_until_ready()


async def _connect(target: Target, attempts: Attempts, loopback_only: bool) -> socket.socket:
    """Opens a socket to the first address of a name that takes it."""
    loop = asyncio.get_running_loop()
    places: list[tuple[int, Any]] = [(socket.AF_UNIX, target.path)]
    if not target.path:
        found = await in_thread(
            socket.getaddrinfo, target.host, target.port, type=socket.SOCK_STREAM
        )
        places = resolved(target, found, loopback_only)
    error: OSError | None = None
    for index, (family, where) in enumerate(places):
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            seconds = seconds_to_accept(attempts.remaining, len(places) - index)
            await asyncio.wait_for(loop.sock_connect(connecting, where), seconds)
            return connecting
        except (OSError, asyncio.TimeoutError) as caught:
            connecting.close()
            error = caught if isinstance(caught, OSError) else TimeoutError("no answer in time")
        except BaseException:
            connecting.close()
            raise
    raise error or OSError(f"no address for {target.host}")


class AsyncHttp2Stream(asyncio.BufferedProtocol, AsyncStream):
    """An `AsyncStream`, made by `open_http2_stream_async`.

    Attributes:
      alert: what the server said in TLS when it ended the connection.
    """

    def __init__(self, half: ClientHalf, headers: list[SentHeader]):
        self.address = half.address
        self._half = half
        self._framing = half.framing
        self._sending = half.framing.sending
        self._call = half.open(headers)
        self._transport: Any = None
        self.alert: ssl.SSLError | None = None
        self._is_lost = True
        self._is_closed = False
        self._is_paused = False
        self._bytes_waiting = 0
        self._changed: asyncio.Future[None] | None = None
        self._is_full = False
        self._keepalive = Keepalive(half.framing)
        self._timer: asyncio.TimerHandle | None = None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the preface and the request."""
        self._transport = transport
        self._is_lost = False
        if self._is_closed:
            self._transport.abort()
            return
        set_options(transport.get_extra_info("socket"))
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns where the next bytes belong."""
        return self._framing.buffers()[0]

    def buffer_updated(self, nbytes: int) -> None:
        """Takes what was received."""
        messages = self._call.messages
        before = len(messages)
        self._framing.received(nbytes)
        for index in range(before, len(messages)):
            self._bytes_waiting += len(messages[index])
        self._flush()
        if self._bytes_waiting > _PAUSE_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """The server has closed its half."""
        self._framing.received(0)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """There is no connection any more."""
        self._framing.received(0)
        self.alert = exc if isinstance(exc, ssl.SSLError) else None
        self._is_lost = True
        self._is_full = False
        self._wake()

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self._is_full = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_full = False
        self._flush()
        self._wake()

    # What the connection calls.

    @property
    def has_alpn(self) -> bool:
        """Whether the server agreed to HTTP/2 in the TLS handshake."""
        encrypted = self._transport.get_extra_info("ssl_object")
        return encrypted is not None and encrypted.selected_alpn_protocol() == "h2"

    async def wait_until_ready(self) -> None:
        """Returns when the server has shown itself; raises what `read` raises."""
        while not self._framing.control.is_ready:
            self._check()
            await self._change()

    async def write(self, message: bytes) -> None:
        if self._is_closed or self._call.failure is not None:
            return  # `read` raises it.
        self._call.send(message)
        self._flush()
        while (self._is_full or self._sending.has_unsent) and (
            self._call.failure is None and not self._is_closed
        ):
            await self._change()

    async def read(self) -> Buffer:
        messages = self._call.messages
        while not messages:
            self._check()
            self._watch()
            await self._change()
        message = messages.popleft()
        self._bytes_waiting -= len(message)
        if self._is_paused and self._bytes_waiting <= _PAUSE_BYTES:
            self._is_paused = False
            self._transport.resume_reading()
        return message

    async def close(self, timeout: float) -> None:
        if not self._is_closed and self._call.failure is None and timeout > 0:
            self._call.end()
            self._flush()
            try:
                await asyncio.wait_for(self._wait_until_ended(), timeout)
            except (asyncio.TimeoutError, DmEnvRpcClientError):
                pass
        self.abort()
        # The loop closes the socket in its next rounds.
        while not self._is_lost:
            await asyncio.sleep(0)

    def abandon(self) -> None:
        self._is_closed = self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            # The socket itself. The transport would remove it from the selector, which is shared
            # with the parent; for a closed socket that fails, and nothing else is left to do.
            wrapper = self._transport.get_extra_info("socket")
            getattr(wrapper, "_sock", wrapper).close()

    def abort(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._half.shut_down()
            self._flush()
            # Not `close`: with TLS that waits for the other end to agree.
            self._transport.abort()
        self._wake()

    async def _wait_until_ended(self) -> None:
        while True:
            await self.read()

    def _check(self) -> None:
        if self._call.failure is not None:
            raise self._call.failure
        if self._is_closed:
            raise ConnectionClosedError(f"the connection to {self.address} was closed")

    def _flush(self) -> None:
        outbound = self._sending.outbound
        if self._is_full:
            return  # The queue is bounded, the transport's own buffer is not.
        if outbound and not self._transport.is_closing():
            if len(outbound) == 1:
                self._transport.write(outbound[0])
            else:
                self._transport.writelines(outbound)
        outbound.clear()

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    async def _change(self) -> None:
        """Returns when something has happened, for any number of coroutines."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _watch(self) -> None:
        """Sees to it that silence is noticed while an answer is waited for."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._changed is None or self._is_closed:
            return  # Nobody waits.
        verdict = self._keepalive.judge()
        if verdict is Verdict.GIVE_UP:
            self._call.fail(silent(self.address))
            self._transport.abort()
            self._wake()
            return
        if verdict is Verdict.PROBE:
            self._framing.probe()
            self._flush()
        self._watch()
