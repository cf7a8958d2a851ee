"""A server that ends connections after some streams, as proxies do: GOAWAY (RFC 9113, section 6.8).

Streams after the last that it names were not processed, so they are opened again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import ConnectionLostError, make
from dm_env_rpc_client.adaptors.vector import BatchedEnvironment
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.server_half import ServerHalf
from tests.support.environments import Echo
from tests.support.groups import installed
from tests.support.ports import HeldPort
from tests.support.scripted import settles
from tests.support.stopwatch import time_limit


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
