"""A server that ends connections after some streams, as proxies do: GOAWAY (RFC 9113, section 6.8).

Streams after the last that it names were not processed, so they are opened again.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    connect_async,
    make,
)
from dm_env_rpc_client.adaptors.vector import BatchedEnvironment
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.server_half import ServerHalf
from tests.support.environments import Echo
from tests.support.groups import installed
from tests.support.ports import HeldPort
from tests.support.scripted import descriptor_count, extension, settles, settles_async
from tests.support.stopwatch import time_limit
from tests.transports.frames import RESPONSE, headers
from tests.transports.raw_server import (
    Script,
    ask,
    both_ways,
    echoed,
    greet,
    next_frame,
    raw_server,
    read_exactly,
    until_closed,
)


class Leaving:
    """What the patched server does: it takes some streams of a connection and drops others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.streams = 1
        self.code = frames.NO_ERROR
        self.dropped = 0
        take = ServerHalf.take_headers

        def take_some(half: Any, stream: int, headers: Any, ends_stream: bool) -> None:
            if (stream + 1) // 2 > self.streams:
                self.dropped += 1
                half._remember(stream)
                half.last_stream = max(half.last_stream, stream)
                return
            take(half, stream, headers, ends_stream)
            if (stream + 1) // 2 == self.streams:
                last = 2 * self.streams - 1
                half.framing.sending.outbound.append(frames.goaway(last, self.code))

        monkeypatch.setattr(ServerHalf, "take_headers", take_some)


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Leaving:
    return Leaving(monkeypatch)


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(Echo, transport="http2") as server:
        yield server


def check_steps(address: str, count: int, **how: Any) -> None:
    with BatchedEnvironment(address, count, num_batches=0, **how) as env:
        for number in range(3):
            env.reset()
            values = list(range(number, number + count))
            assert env.step({"value": values}).observation["value"].tolist() == values


@pytest.mark.parametrize("streams", [1, 2, 3, 7])
def test_streams_that_were_not_processed_are_opened_again(
    leaving: Leaving, server: Server, streams: int
) -> None:
    leaving.streams = streams
    for _ in range(5):
        with time_limit(20):
            check_steps(server.address, 8, transport="http2")
    assert leaving.dropped > 0
    assert settles(lambda: server.stats().worlds == 0)
    assert settles(lambda: server.stats().streams == 0)


def test_those_of_another_code_are_lost(leaving: Leaving, server: Server) -> None:
    leaving.streams, leaving.code = 3, frames.ENHANCE_YOUR_CALM
    with pytest.raises(Exception, match="ENHANCE_YOUR_CALM"):
        check_steps(server.address, 8, transport="http2")


def test_a_stream_that_was_processed_is_not_opened_again(leaving: Leaving, server: Server) -> None:
    with make(server.address, transport="http2") as env:
        env.reset()
        server.stop(0.1)
        with pytest.raises(ConnectionLostError):
            env.step({"value": 1})


def leaving_at_first(connections: int, code: int = frames.NO_ERROR) -> Script:
    """The script of a server that processes no stream of its first connections."""
    left = [connections]

    def script(connection: socket.socket) -> None:
        assert read_exactly(connection, len(frames.PREFACE)) == frames.PREFACE
        connection.sendall(frames.settings_frame({}))
        while next_frame(connection).kind != frames.DATA:
            pass
        if left[0]:
            left[0] -= 1
            connection.sendall(frames.goaway(0, code))
        else:
            connection.sendall(headers(*RESPONSE) + echoed(5))
        until_closed(connection)

    return script


@both_ways
@pytest.mark.parametrize("connections", [1, 3])
def test_the_only_stream_of_a_connection_is_opened_again(is_async: bool, connections: int) -> None:
    with raw_server(leaving_at_first(connections)) as address:
        assert ask(address, is_async, 5) == extension(5)


@both_ways
def test_it_is_opened_again_three_times_at_most(is_async: bool) -> None:
    lost = pytest.raises(ConnectionLostError, match="GOAWAY with NO_ERROR")
    with raw_server(leaving_at_first(4)) as address, lost:
        ask(address, is_async, 5)


@both_ways
def test_it_is_not_opened_again_after_another_code(is_async: bool) -> None:
    script = leaving_at_first(1, frames.ENHANCE_YOUR_CALM)
    lost = pytest.raises(ConnectionLostError, match="ENHANCE_YOUR_CALM")
    with raw_server(script) as address, lost:
        ask(address, is_async, 5)


@both_ways
def test_it_is_not_opened_again_once_the_server_has_begun_to_answer(is_async: bool) -> None:
    """Even if its GOAWAY says so: a request must not be processed twice."""

    def script(connection: socket.socket) -> None:
        greet(connection)
        while next_frame(connection).kind != frames.DATA:
            pass
        connection.sendall(frames.goaway(0, frames.NO_ERROR))
        until_closed(connection)

    lost = pytest.raises(ConnectionLostError, match="GOAWAY with NO_ERROR")
    with raw_server(script) as address, lost, time_limit(5):
        ask(address, is_async, 5)


def only_once() -> Script:
    """The script of a server that says GOAWAY once, and nothing to those who come again."""
    leave = leaving_at_first(1)
    first = [True]

    def script(connection: socket.socket) -> None:
        if first:
            first.clear()
            leave(connection)
        until_closed(connection)

    return script


@pytest.mark.parametrize("act", ["deadline", "close"])
async def test_a_deadline_and_a_close_end_the_opening_of_another(act: str) -> None:
    with raw_server(only_once()) as address:
        connection = await connect_async(address)
        descriptors = descriptor_count()
        timeout = 0.3 if act == "deadline" else None
        sending = asyncio.create_task(connection.send(extension(5), timeout))
        pipeline = connection._pipeline
        assert await settles_async(lambda: pipeline._ending is not None)
        opening = pipeline._ending
        assert opening is not None
        if act == "close":
            await connection.close()
        with pytest.raises((DeadlineExceededError, ConnectionClosedError)):
            await sending
        await asyncio.wait([opening])
        assert opening.cancelled()
        await connection.close()
        assert await settles_async(lambda: descriptor_count() < descriptors)


NGINX = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} http2;
    keepalive_requests 3;
    location / {{ grpc_pass grpc://{address}; }}
  }}
}}
"""


@pytest.mark.nginx
def test_many_environments_behind_nginx_that_ends_connections(
    server: Server, tmp_path: Path
) -> None:
    with HeldPort() as held:
        port = held.number
    text = NGINX.format(folder=tmp_path, port=port, address=server.address)
    (tmp_path / "nginx.conf").write_text(text)
    command = [str(installed("nginx")), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as nginx:
        try:
            for _ in range(5):
                check_steps(f"127.0.0.1:{port}", 8, transport="http2", timeout=20)
        finally:
            nginx.terminate()
            nginx.wait(20)
