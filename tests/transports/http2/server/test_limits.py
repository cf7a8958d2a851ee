"""What a client may make a listener hold, how it ends, and what it may do without a stream."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import DmEnvAdaptor, Tls, create_world, make
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.http2.server import answering, clients, leading, listener
from dm_env_rpc_client.transports.http2.server.clients import Clients
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection
from dm_env_rpc_client.transports.services import CHECK
from tests.support.certificates import Authority
from tests.support.collector import no_garbage_collection
from tests.support.scripted import descriptor_count, settles
from tests.transports import frames
from tests.transports.frames import ACK, DATA, HEADERS, PING, PREFACE, frame, window_update
from tests.transports.hosts import WAIT_SECONDS, Host, is_served
from tests.transports.raw_client import REQUEST, RawClient, request, requests
from tests.transports.server_shell import BEGIN, Server, headers


def test_who_sends_requests_only_is_ended(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_MAX_AHEAD_BYTES", 1 << 16)
    with host.blocking() as go_on, RawClient(host.address) as client:
        client.send(request(1) + requests(1, b"block:", *[b"echo:"] * 3_000))
        assert client.read_until(lambda: client.status(1) == "8")
        assert client.ping()
        go_on.set()
        assert host.all_closed_once()


def test_without_descriptors_clients_wait_and_the_processor_rests(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = host.listener._clients.listening.accept
    failures = 0

    def refuse(descriptor: int) -> Any:
        nonlocal failures
        failures += 1
        raise OSError(24, "Too many open files")

    with RawClient(host.address) as client:
        client.begin()
        with monkeypatch.context() as patched:
            patched.setattr(host.listener._clients.listening, "accept", refuse)
            with RawClient(host.address) as waiting:
                waiting.send(request(1) + requests(1, b"echo:y"))
                begin = time.monotonic()
                assert not waiting.read_until(lambda: waiting.is_greeted, 0.7)
                assert failures < 30 * (time.monotonic() - begin)
                # The others do not notice.
                client.send(requests(1, b"echo:z"))
                assert client.read_until(lambda: client.answers(1) == [b"x", b"z"])
                patched.setattr(host.listener._clients.listening, "accept", accept)
                assert waiting.read_until(lambda: waiting.answers(1) == [b"y"])


def test_connections_of_machines_that_are_gone_are_ended_by_the_kernel(
    host: Host, client: RawClient
) -> None:
    assert client.read_until(lambda: client.is_greeted)
    (connection,) = host.listener._clients.connections.values()
    option = connection._socket.getsockopt
    assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    seconds = option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
    seconds += option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) * option(
        socket.IPPROTO_TCP, socket.TCP_KEEPCNT
    )
    assert seconds <= 30


def test_without_threads_a_stream_ends_with_a_status(
    host: Host,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    threadless: Callable[[str], None],
) -> None:
    # On a busy machine the watcher would take over before the stream is known to be slow.
    monkeypatch.setattr(leading, "TICK_SECONDS", 1.0)
    threadless("serves a stream")
    # The third is known to be slow.
    client.send(request(1) + requests(1, *[b"sleep:4,a"] * 20))
    assert client.read_until(lambda: client.status(1) == "8")
    assert host.all_closed_once()
    assert is_served(host)


PROTOCOL_ERROR = 1
VIOLATION = frame(DATA, b"", 0, 0)
PINGS = 40_000


def break_off(client: RawClient, junk: int = 0) -> None:
    """Sends what ends the connection, behind PINGs with more answers than a kernel takes."""
    assert client.send(frame(PING, bytes(8)) * PINGS + VIOLATION + bytes(junk))


def lingering(host: Host) -> int:
    return len(host.listener._clients.draining)


def is_told(client: RawClient) -> bool:
    """Whether the client learns that its connection ends."""
    return client.read_until(lambda: client.goaway_code() is not None)


@pytest.mark.parametrize("is_tls", [False, True])
def test_the_last_word_arrives_behind_all_others_while_the_client_goes_on(
    is_tls: bool, authority: Authority, tls: Tls
) -> None:
    context = Tls(ca=authority.ca).client_context()
    context.set_alpn_protocols(["h2"])
    with (
        Host(tls.server_context() if is_tls else None) as host,
        RawClient(host.address, greets=False) as client,
    ):
        if is_tls:
            client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        client.send(PREFACE + frames.settings())
        break_off(client, junk=4_000_000)
        assert client.read_to_the_end()
        assert client.goaway_code() == PROTOCOL_ERROR
        assert len(client.found(PING, 0, ACK)) == PINGS
        client.socket.close()
        assert settles(lambda: lingering(host) == 0)


def test_the_last_word_arrives_behind_an_answer_that_no_kernel_keeps(host: Host) -> None:
    with RawClient(host.address, window=1 << 30) as client:
        client.send(window_update(0, 1 << 30) + request(1) + requests(1, b"large:30000000"))
        # What is not answered yet when a connection ends is not answered any more.
        assert client.read_until(lambda: bool(client.found(HEADERS, 1)))
        client.send(VIOLATION)
        assert client.read_to_the_end(30.0)
        assert client.goaway_code() == PROTOCOL_ERROR
        assert len(client.answers(1)[0]) == 30_000_000
    assert settles(lambda: lingering(host) == 0)


def test_a_client_that_keeps_the_connection_loses_it_after_a_while(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(clients, "_LINGER_SECONDS", 0.2)
    before = descriptor_count()
    with RawClient(host.address) as reads, RawClient(host.address) as reads_not:
        reads.send(VIOLATION)
        assert reads.read_until(lambda: reads.goaway_code() == PROTOCOL_ERROR)
        break_off(reads_not)
        assert settles(lambda: lingering(host) == 0 and not host.listener._clients.connections)
        assert descriptor_count() == before + 2
        assert settles(lambda: not reads.send(b"x"))


def test_only_so_many_linger_at_a_time(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_MOST_LINGERING", 3)
    breakers = [RawClient(host.address) for _ in range(8)]
    try:
        for client in breakers:
            client.send(VIOLATION)
            assert is_told(client)
            assert lingering(host) <= 3
        assert settles(lambda: not host.listener._clients.connections and lingering(host) == 3)
    finally:
        for client in breakers:
            client.socket.close()
    assert settles(lambda: lingering(host) == 0)


def test_stop_does_not_wait_for_them(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_LINGER_SECONDS", 100.0)
    with RawClient(host.address) as client:
        break_off(client)
        assert settles(lambda: lingering(host) == 1)
        begin = time.monotonic()
        host.listener.stop(100.0)
        assert time.monotonic() - begin < WAIT_SECONDS
        assert host.listener.wait(0.0)
        assert client.read_to_the_end()


CHECKED = [(name, CHECK if name == ":path" else value) for name, value in REQUEST]


@contextlib.contextmanager
def encrypted(authority: Authority, tls: Tls) -> Iterator[DmEnvAdaptor]:
    """An environment that is reached with TLS, at the beginning of its sequence."""
    trusting = Tls(ca=authority.ca)
    with serve(Catch, credentials=tls) as server, make(server.address, credentials=trusting) as env:
        env.reset()
        yield env


def test_a_handshake_delays_nobody_who_plays(
    authority: Authority, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()
    inside: list[ServerConnection] = []
    encrypt = ServerConnection.encrypt

    def slow(self: ServerConnection) -> bool | None:
        inside.append(self)
        begun.set()
        ended.wait(WAIT_SECONDS)
        inside.remove(self)
        return encrypt(self)

    with encrypted(authority, tls) as env:
        monkeypatch.setattr(ServerConnection, "encrypt", slow)
        with RawClient(env.connection.address, greets=False) as stranger:
            stranger.send(b"\x16\x03\x01")
            assert begun.wait(WAIT_SECONDS)
            env.step({"paddle": 0})
            assert inside
            ended.set()
        # What it sent was no handshake.
        with env.connection.reopen() as another:
            create_world(another)


def test_without_another_thread_handshakes_go_on(
    authority: Authority, tls: Tls, threadless: Callable[[str], None]
) -> None:
    threadless("shakes hands")
    with encrypted(authority, tls) as env:
        assert env.step({"paddle": 0}).mid()


def test_of_connections_that_are_over_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    add = Clients.add

    def watched(self: Clients, *arguments: Any) -> Any:
        connection = add(self, *arguments)
        made.extend(map(weakref.ref, (connection, connection.half, connection.half.framing)))
        return connection

    monkeypatch.setattr(Clients, "add", watched)
    with Host() as host, no_garbage_collection():
        for contents in (b"", request(1), request(1) + requests(1, b"echo:x", end=True)):
            with RawClient(host.address) as client:
                client.send(contents)
                assert client.ping()
        with RawClient(host.address) as last:
            assert last.ping()
            assert settles(lambda: all(each() is None for each in made[:9]))


@pytest.mark.parametrize("header_bytes", [0, 13_700])
def test_answers_to_checks_of_health_pay_for_small_headers_only(header_bytes: int) -> None:
    server = Server()
    server.feed(BEGIN)
    for number in range(1, 2_000, 2):
        server.feed(headers(*CHECKED, ("x", "y" * header_bytes), stream=number))
        server.feed(requests(number, b"", end=True))
        server.take_outbound()
        if server.framing.failure is not None:
            break
    if header_bytes:
        assert number < 100
        assert "opened and reset more than" in str(server.framing.failure)
    else:
        assert server.framing.failure is None


def test_they_give_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_MORE_SOCKETS", 1)
    with (
        Host(max_streams=1) as host,
        RawClient(host.address) as one,
        RawClient(host.address) as other,
    ):
        for client in (one, other):
            client.send(VIOLATION)
            assert is_told(client)
        assert settles(lambda: lingering(host) == 2)
        assert is_served(host)
