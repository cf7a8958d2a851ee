"""Waiting for several connections at once, in one thread."""

from __future__ import annotations

import selectors
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client import Connection, ConnectionLostError, DmEnvRpcError, connect
from dm_env_rpc_client.environment.many.pool_servers import ConnectionSelector
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.system.polling import SelfPipe
from dm_env_rpc_client.testing import ScriptedServer
from dm_env_rpc_client.testing.scripted_server import Request, Response
from dm_env_rpc_client.transports.net import keepalive
from tests.support.scripted import descriptor_count, extension, served_echo, settles
from tests.support.stopwatch import time_limit


class Gate:
    """Echoes extensions, each when it is let through."""

    def __init__(self) -> None:
        self.open = threading.Semaphore(0)
        self.passed: list[bytes] = []

    def __call__(self, requests: Iterator[Request], context: Any) -> Iterator[Response | bytes]:
        for request in requests:
            self.open.acquire(timeout=30)
            self.passed.append(request.extension.value)
            yield Response(extension=request.extension)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def connections(gate: Gate) -> Iterator[dict[int, Connection]]:
    with ScriptedServer(gate) as server:
        opened = {number: connect(server.address) for number in (3, 5)}
        yield dict(opened)
        gate.open.release(99)
        for connection in opened.values():
            connection.close()


def readable(descriptor: int, timeout: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout))


def watching(connections: dict[int, Connection]) -> ConnectionSelector:
    selector = ConnectionSelector()
    for number, connection in connections.items():
        selector.watch(number, connection)
    return selector


def _wait(
    selector: ConnectionSelector, connections: dict[int, Connection], pending: dict[int, Pending]
) -> list[int]:
    while True:
        ready = selector.wait(connections, 10.0)
        assert ready
        done = [n for n in ready if connections[n].poll(pending[n])]
        if done:
            return done


def test_a_closed_connection_is_ready_at_once(connections: dict[int, Connection]) -> None:
    connections[3].close()
    selector = watching(connections)
    assert connections[3].fileno() == -1
    assert 3 in selector.wait(connections, None)  # The other may have bytes of HTTP/2.
    selector.close()


def test_one_that_is_not_waited_for_does_not_end_a_wait(
    connections: dict[int, Connection], gate: Gate
) -> None:
    selector = watching(connections)
    pending = {number: c.start(extension(number)) for number, c in connections.items()}
    selector.wait(connections, 0.0)
    gate.open.release(2)
    assert _wait(selector, {3: connections[3]}, pending) == [3]
    # The other's answer is there, unread: nobody is left whom the gate would let through.
    assert settles(lambda: len(gate.passed) == 2)
    started = time.monotonic()
    again = connections[3].start(extension(9))
    while selector.wait({3: connections[3]}, 0.3):
        assert not connections[3].poll(again)
        assert time.monotonic() - started < 10.0
    assert time.monotonic() - started >= 0.3
    gate.open.release()
    assert _wait(selector, {3: connections[3]}, {3: again}) == [3]
    assert connections[5].poll(pending[5])
    selector.close()


def test_a_self_pipe_is_readable_from_notify_to_drain() -> None:
    before = descriptor_count()
    pipe = SelfPipe()
    pipe.notify()
    pipe.drain()
    assert descriptor_count() <= before
    assert readable(pipe.fileno(), 0.0)
    pipe.drain()
    assert not readable(pipe.fileno(), 0.0)
    pipe.drain()
    for _ in range(100_000):  # More than a pipe holds.
        pipe.notify()
    assert readable(pipe.fileno(), 0.0)
    for _ in range(100):
        pipe.drain()
    assert not readable(pipe.fileno(), 0.0)
    pipe.close()
    pipe.close()
    pipe.notify()
    pipe.drain()
    assert pipe.fileno() == -1
    assert descriptor_count() <= before


def test_a_server_that_freezes_while_several_are_waited_for_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dm_env_rpc_client.environment.many.pool_servers.LOOK_SECONDS", 0.05)
    monkeypatch.setattr(keepalive, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(keepalive, "PROBE_SECONDS", 0.2)
    with served_echo() as server:
        connection = connect(server.address, transport="http2", keepalive_timeout=1.2)
        pending = connection.start(extension(1))
        with pytest.raises(DmEnvRpcError):
            connection.wait(pending)
        server.signal(signal.SIGSTOP)
        pending = connection.start(extension(2))
        selector = watching({0: connection})
        with time_limit(5):
            while not connection.poll(pending):
                assert selector.wait({0: connection}, None) == [0]
        with pytest.raises(ConnectionLostError, match="did not answer a probe"):
            connection.wait(pending)
        selector.close()
