"""FaultProxy: what goes in comes out, as badly as was asked for; and ScriptedServer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.rpc import status_pb2

from dm_env_rpc_client import ConnectionLostError, SpecError, connect, dm_env_rpc_pb2, make
from dm_env_rpc_client.protocol.envelopes import answer_field
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.testing import FaultProxy, Request, Response, ScriptedServer
from tests.support.scripted import (
    answering_socket,
    descriptor_count,
    settles,
    thread_count,
)

LARGE = bytes(range(256)) * 4096


def recording(
    requests: list[bytes], answer: bytes | None = None, last: bytes = b""
) -> Callable[[socket.socket], None]:
    """A server that keeps what it hears, and answers; with what it has heard unless told otherwise.

    Args:
      requests: gets each piece that has arrived.
      answer: to each of them.
      last: what is sent when the client says no more.
    """

    def script(connected: socket.socket) -> None:
        while contents := connected.recv(1 << 16):
            requests.append(contents)
            connected.sendall(contents if answer is None else answer)
        connected.sendall(last)

    return script


def echo(connected: socket.socket) -> None:
    while contents := connected.recv(1 << 16):
        connected.sendall(contents)


@contextlib.contextmanager
def through(
    script: Callable[[socket.socket], None] = echo, **faults: Any
) -> Iterator[tuple[FaultProxy, socket.socket]]:
    """A client's socket that leads to a server's through a proxy."""
    with (
        answering_socket(script) as address,
        FaultProxy(address, **faults) as proxy,
        connected(proxy) as client,
    ):
        yield proxy, client


def connected(proxy: FaultProxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), 10)


def hears_nothing(client: socket.socket) -> bool:
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(10)
    return True


def received(client: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size and (part := client.recv(size - len(parts))):
        parts += part
    return bytes(parts)


def ask(client: socket.socket, contents: bytes) -> bytes:
    sender = threading.Thread(target=client.sendall, args=(contents,))
    sender.start()
    answer = received(client, len(contents))
    sender.join()
    return answer


@pytest.mark.parametrize(
    "faults",
    [
        {},
        {"latency": 0.02},
        {"latency": 0.001, "jitter": 0.01},
        {"slice_bytes": 1000},
        {"bandwidth": 20e6},
        {"latency": 0.002, "jitter": 0.01, "slice_bytes": 7001, "bandwidth": 50e6},
    ],
)
def test_every_byte_arrives_in_order(faults: dict[str, Any]) -> None:
    with through(**faults) as (proxy, client):
        assert ask(client, LARGE) == LARGE
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        assert settles(lambda: proxy.connection_count == 0)
        assert proxy.bytes_to_server == proxy.bytes_to_client == len(LARGE)


def test_slices_are_sent_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # They may arrive together, so it is counted what is sent.
    sizes: list[int] = []
    send = asyncio.SelectorEventLoop.sock_sendall

    async def counted(loop: asyncio.SelectorEventLoop, target: socket.socket, part: Any) -> None:
        sizes.append(len(part))
        await send(loop, target, part)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_sendall", counted)
    with through(slice_bytes=1) as (_, client):
        assert ask(client, LARGE[:5_000]) == LARGE[:5_000]
    assert sizes == [1] * 10_000


def test_bandwidth_is_a_limit_and_latency_is_in_both_directions() -> None:
    with through(bandwidth=1e6) as (proxy, client):
        started = time.monotonic()
        assert ask(client, LARGE[:300_000]) == LARGE[:300_000]
        assert time.monotonic() - started >= 0.29
        # Both may change while a connection is open.
        proxy.bandwidth, proxy.latency = None, 0.1
        started = time.monotonic()
        assert ask(client, b"x") == b"x"
        assert time.monotonic() - started >= 0.2


def test_reset_reaches_both_ends_and_new_connections_are_accepted() -> None:
    errors: list[OSError] = []

    def script(connected: socket.socket) -> None:
        try:
            echo(connected)
        except OSError as error:
            errors.append(error)

    with through(script) as (proxy, client):
        assert ask(client, b"x") == b"x"
        proxy.reset()
        assert proxy.connection_count == 0
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert settles(lambda: [type(error) for error in errors] == [ConnectionResetError])
        with connected(proxy) as second:
            assert ask(second, b"y") == b"y"


def test_nothing_passes_a_blackhole_and_nothing_is_lost_in_it() -> None:
    with through() as (proxy, client):
        assert ask(client, b"x") == b"x"
        proxy.blackhole()
        client.sendall(b"abc")
        assert hears_nothing(client)
        assert proxy.bytes_to_server == len(b"x")
        proxy.resume()
        assert received(client, 3) == b"abc"


def test_a_blackhole_may_swallow_answers_only_and_hides_the_end_of_the_server() -> None:
    heard = threading.Event()

    def script(connected: socket.socket) -> None:
        connected.recv(10)
        connected.sendall(b"answer")
        heard.set()

    with through(script) as (proxy, client):
        proxy.blackhole("to_client")
        client.sendall(b"request")
        assert heard.wait(10)
        assert hears_nothing(client)
        proxy.resume()
        assert received(client, 100) == b"answer"


def test_half_close_ends_one_direction() -> None:
    requests: list[bytes] = []
    with through(recording(requests, b"", b"last words")) as (proxy, client):
        client.sendall(b"x")
        assert settles(lambda: requests == [b"x"])
        proxy.half_close("to_server")
        client.sendall(b"dropped")
        assert received(client, 100) == b"last words"
    assert requests == [b"x"]
    with through(recording(requests, b"dropped")) as (proxy, client):
        assert settles(lambda: proxy.connection_count == 1)
        proxy.half_close("to_client")
        assert client.recv(1) == b""
        client.sendall(b"still heard")
        assert settles(lambda: b"".join(requests) == b"xstill heard")


@pytest.mark.parametrize(("after", "count"), [(0, 1), (3, 2), (0, 10), (70_000, 5)])
def test_so_many_bytes_are_changed(after: int, count: int) -> None:
    with through() as (proxy, client):
        proxy.corrupt("to_client", count, after)
        answer = ask(client, LARGE)
        wrong = [place for place in range(len(LARGE)) if answer[place] != LARGE[place]]
        assert wrong == list(range(after, after + count))
        assert ask(client, b"as before") == b"as before"


def test_a_client_of_a_server_that_is_not_there_is_reset() -> None:
    def try_it(proxy: FaultProxy) -> None:
        # The reset may come before `connect` has returned.
        with connected(proxy) as client:
            client.recv(1)

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with FaultProxy(f"127.0.0.1:{unused.getsockname()[1]}") as proxy:
            with pytest.raises(ConnectionResetError):
                try_it(proxy)
            assert settles(lambda: proxy.connection_count == 0)


def test_what_is_closed_is_gone() -> None:
    with answering_socket(echo) as address:
        threads, descriptors = thread_count(), descriptor_count()
        for _ in range(20):
            proxy = FaultProxy(address)
            with connected(proxy) as client:
                assert ask(client, b"x") == b"x"
                proxy.close()
                proxy.close()
                proxy.reset()
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
        assert settles(lambda: thread_count() <= threads + 20)  # The server's.
        assert settles(lambda: descriptor_count() <= descriptors + 1)
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)


def test_a_server_on_a_unix_socket(tmp_path: Path) -> None:
    with (
        serve(Catch, f"unix:{tmp_path}/socket") as server,
        FaultProxy(server.address) as proxy,
        make(proxy.address) as env,
    ):
        assert env.reset().first()


# The scripted server.


LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()


def test_it_keeps_what_its_script_raises() -> None:
    def broken(requests: Iterator[Request], context: Any) -> Iterator[Response]:
        for _ in requests:
            raise ValueError("broken script")
        yield Response()

    with ScriptedServer(broken) as server, connect(server.address) as connection:
        with pytest.raises(ConnectionLostError):
            connection.send(LEAVE)
        assert settles(lambda: bool(server.errors))
    assert str(server.errors[0]) == "broken script"


def test_what_is_no_answer_is_refused() -> None:
    assert answer_field(dm_env_rpc_pb2.ResetResponse()) == "reset"
    assert answer_field(status_pb2.Status()) == "error"
    with pytest.raises(SpecError, match="is not a dm_env_rpc response"):
        answer_field(LEAVE)
