"""The stream in an event loop: what it reads at a time, TLS, cancelled connects, forks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    Tls,
    connect_async,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.transports.http2.client import connection as connections
from dm_env_rpc_client.transports.http2.client.receiver import Receiver
from dm_env_rpc_client.transports.http2.client.stream import Http2Stream
from tests.reliability.processes.forking import Child
from tests.support.certificates import Authority
from tests.support.scripted import descriptor_count, extension, settles_async, thread_count
from tests.support.stopwatch import patience
from tests.transports import frames
from tests.transports.frames import data, grpc_message
from tests.transports.raw_server import (
    Script,
    echoed,
    full_listener,
    greet,
    next_frame,
    raw_server,
    until_closed,
)

MEGABYTE = 1 << 20
LARGEST_RECORD = 1 << 14
"""Of TLS."""


def answer_of(size: int) -> bytes:
    """The frames of an answer with a value of so many bytes."""
    answer = extension(1)
    answer.value = bytes(size)
    response = dm_env_rpc_pb2.EnvironmentResponse(extension=answer)
    message = grpc_message(response.SerializeToString())
    parts = range(0, len(message), 8 * MEGABYTE)
    return b"".join(data(message[part : part + 8 * MEGABYTE]) for part in parts)


def until_request(connection: socket.socket) -> None:
    while next_frame(connection).kind != frames.DATA:
        pass


# How much is read.


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each callback of the loop might have received, at most."""
    counts: list[int] = []
    ready = Http2Stream.receive
    receive_once, decrypt = Receiver.receive, ssl.SSLSocket.recv_into

    def ready_counted(self: Http2Stream) -> bool:
        counts.append(0)
        return ready(self)

    def receive_once_counted(self: Receiver, flags: int) -> bool:
        has_received = receive_once(self, flags)
        if counts:
            counts[-1] += sum(map(len, self.buffers or ()))
        return has_received

    def decrypt_counted(self: ssl.SSLSocket, *arguments: Any) -> int:
        if counts and not self.server_side:
            counts[-1] += LARGEST_RECORD
        return decrypt(self, *arguments)

    monkeypatch.setattr(Http2Stream, "receive", ready_counted)
    monkeypatch.setattr(Receiver, "receive", receive_once_counted)
    monkeypatch.setattr(ssl.SSLSocket, "recv_into", decrypt_counted)
    return counts


@contextlib.contextmanager
def tls_script(script: Script, tls: Tls) -> Iterator[str]:
    context = tls.server_context()
    context.set_alpn_protocols(["h2"])

    def encrypted(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            script(wrapped)

    with raw_server(encrypted) as address:
        yield address


@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "TLS"])
async def test_an_answer_of_64_mib_lets_others_run(
    offered: list[int],
    tls: Tls,
    authority: Authority,
    is_tls: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A callback takes at most a MiB, and the rest of a buffer behind it."""
    if is_tls:  # So that some are left over.
        monkeypatch.setattr(connections, "_RECORDS_AT_ONCE", 2)
    most = 2 * LARGEST_RECORD if is_tls else MEGABYTE + (1 << 18)
    answer = answer_of((64 << 20) - 100)

    def script(connection: socket.socket) -> None:
        greet(connection)
        until_request(connection)
        connection.sendall(answer)
        until_closed(connection)

    how: dict[str, Any] = {"credentials": Tls(ca=authority.ca)} if is_tls else {}
    with tls_script(script, tls) if is_tls else raw_server(script) as address:
        async with await connect_async(address, request_timeout=patience(60), **how) as connection:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(tick())
            assert len((await connection.send(extension(1))).value) == (64 << 20) - 100
            ticking.cancel()
    assert sum(offered) > 64 << 20
    assert max(offered) <= most
    assert ticks >= 51


def test_an_interrupt_of_what_receives_loses_no_answer_in_silence() -> None:
    """As in a notebook, whose loop goes on after it."""
    is_patched = threading.Event()
    receive = Http2Stream.receive

    def script(connection: socket.socket) -> None:
        greet(connection)
        until_request(connection)
        assert is_patched.wait(30)
        connection.sendall(echoed(1))
        until_closed(connection)

    with (
        pytest.MonkeyPatch.context() as patch,
        raw_server(script) as address,
        contextlib.closing(asyncio.new_event_loop()) as loop,
    ):

        def receive_and_interrupt(self: Http2Stream) -> bool:
            patch.undo()
            receive(self)
            raise KeyboardInterrupt

        connection = loop.run_until_complete(connect_async(address, request_timeout=patience(9)))
        sending = loop.create_task(connection.send(extension(1)))
        for _ in range(5):  # The request is written by then.
            loop.run_until_complete(asyncio.sleep(0))
        patch.setattr(Http2Stream, "receive", receive_and_interrupt)
        is_patched.set()
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(sending)
        with pytest.raises(ConnectionLostError, match="KeyboardInterrupt"):
            loop.run_until_complete(sending)
        assert isinstance(connection.poisoned_by, KeyboardInterrupt)
        loop.run_until_complete(connection.close())


# TLS.


def echoing(connection: socket.socket) -> None:
    """Answers each request with its number, for ever."""
    greet(connection)
    number = 0
    while True:
        until_request(connection)
        number += 1
        connection.sendall(echoed(number))


async def test_what_tls_holds_is_read_without_another_event_of_the_socket(
    tls: Tls, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a large answer and the next answer are in one record."""
    monkeypatch.setattr(connections, "_RECORDS_AT_ONCE", 1)

    def script(connection: socket.socket) -> None:
        greet(connection)
        for _ in range(2):
            until_request(connection)
        connection.sendall(answer_of(MEGABYTE + 5_000) + echoed(2))
        until_closed(connection)

    with tls_script(script, tls) as address:
        how: dict[str, Any] = {"credentials": Tls(ca=authority.ca), "request_timeout": patience(9)}
        async with await connect_async(address, **how) as connection:
            first, second = await asyncio.gather(
                connection.send(extension(1)), connection.send(extension(2))
            )
            assert (len(first.value), second) == (MEGABYTE + 5_000, extension(2))


# Connects that are cancelled, and forks meanwhile.


@pytest.mark.parametrize("phase", ["the connect", "the handshake", "the greeting"])
async def test_a_cancelled_connect_leaves_no_socket_and_no_thread(
    phase: str, authority: Authority
) -> None:
    how: dict[str, Any] = {}
    if phase == "the handshake":
        how = {"credentials": Tls(ca=authority.ca)}
    serving = full_listener() if phase == "the connect" else raw_server(until_closed)
    with serving as address:
        threads, descriptors = thread_count(), descriptor_count()
        connecting = asyncio.create_task(connect_async(address, timeout=None, **how))
        assert await settles_async(lambda: descriptor_count() > descriptors)
        await asyncio.sleep(0.2)  # It waits for the socket by then; nothing tells.
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        # Those of the server end in their own time.
        assert await settles_async(lambda: descriptor_count() <= descriptors)
        assert await settles_async(lambda: thread_count() <= threads)


async def test_a_fork_while_a_coroutine_connects_takes_nothing_from_it(
    tls: Tls, authority: Authority
) -> None:
    """The selector is shared: the child must not remove the parent's socket there."""
    gc.collect()
    goes_on = threading.Event()
    context = tls.server_context()
    context.set_alpn_protocols(["h2"])

    def script(connection: socket.socket) -> None:
        assert goes_on.wait(30)
        with context.wrap_socket(connection, server_side=True) as wrapped:
            echoing(wrapped)

    with raw_server(script) as address:
        how: dict[str, Any] = {"credentials": Tls(ca=authority.ca), "timeout": patience(9)}
        connecting = asyncio.create_task(connect_async(address, **how))
        await asyncio.sleep(0.2)  # It waits for the handshake by then; nothing tells.

        def leave() -> str:
            connecting.get_coro().close()
            return "left"

        assert Child(leave).result() == "left"
        goes_on.set()
        async with await connecting as connection:
            assert await connection.send(extension(1)) == extension(1)
