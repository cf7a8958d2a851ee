"""What one client may make a listener hold, and how long it may let others wait."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from dm_env_rpc_client.transports.http2.server import answering, leading
from tests.support.scripted import settles
from tests.transports.frames import DATA, window_update
from tests.transports.hosts import Host, is_served
from tests.transports.raw_client import RawClient, request, requests


def test_who_reads_nothing_gets_no_further_answers(host: Host) -> None:
    """The answers would take 400 MB."""
    answered = 0

    def large(rest: bytes) -> bytes:
        nonlocal answered
        answered += 1
        return bytes(200_000)

    host.scripts["large"] = large
    with RawClient(host.address, window=(1 << 31) - 1) as client:
        client.send(window_update(0, (1 << 31) - 1 - 65_535) + request(1))
        client.send(requests(1, *[b"large:"] * 2_000))
        assert settles(lambda: answered > 10)
        assert is_served(host)
        time.sleep(0.2)  # No more are to be answered meanwhile.
        assert answered < 100
        # All come when they are read.
        count = 0

        def taken() -> bool:
            nonlocal count
            count += sum(len(one.payload) for one in client.found(DATA, 1))
            client.frames.clear()
            return count == 2_000 * 200_005

        assert client.read_until(taken, 30.0)


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
