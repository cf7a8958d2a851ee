"""Connections that have had no stream yet: what they may make a listener do, and when."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import DmEnvAdaptor, Tls, create_world, make
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.http2.server.clients import Clients
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection
from dm_env_rpc_client.transports.services import CHECK
from tests.support.certificates import Authority
from tests.support.scripted import settles
from tests.transports.hosts import WAIT_SECONDS, Host
from tests.transports.raw_client import REQUEST, RawClient, request, requests
from tests.transports.server_shell import BEGIN, Server, headers

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
    with Host() as host:
        gc.collect()
        gc.disable()
        try:
            for contents in (b"", request(1), request(1) + requests(1, b"echo:x", end=True)):
                with RawClient(host.address) as client:
                    client.send(contents)
                    assert client.ping()
            with RawClient(host.address) as last:
                assert last.ping()
                assert settles(lambda: all(each() is None for each in made[:9]))
        finally:
            gc.enable()


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
