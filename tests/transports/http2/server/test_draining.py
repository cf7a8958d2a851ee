"""A client that broke HTTP/2 can read why its connection ends, whatever it still sends."""

from __future__ import annotations

import time

import pytest

from dm_env_rpc_client.transports.http2.server import clients
from tests.support.scripted import descriptor_count, settles
from tests.transports.frames import ACK, DATA, HEADERS, PING, frame, window_update
from tests.transports.hosts import WAIT_SECONDS, Host
from tests.transports.raw_client import RawClient, request, requests

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


def test_the_last_word_arrives_behind_all_others_while_the_client_goes_on(host: Host) -> None:
    with RawClient(host.address) as client:
        break_off(client, junk=4_000_000)
        assert client.read_to_the_end()
        assert client.goaway_code() == PROTOCOL_ERROR
        assert len(client.found(PING, 0, ACK)) == PINGS
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
