"""Errors of properties, of transports and of processes name what is wrong."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import dm_env_rpc_client
from dm_env_rpc_client import (
    Tls,
    make,
)
from dm_env_rpc_client.errors import ConnectionLostError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Catch, Properties, serve
from tests.mistakes.doors import Mistake
from tests.support.certificates import self_signed
from tests.support.scripted import answering_socket


@pytest.mark.parametrize("processes", [None, 2])
def test_an_unknown_property_names_those_of_world_and_server(processes: int | None) -> None:
    of_server = Properties()
    of_server.add("level", lambda: 1)
    with (
        serve(Catch, properties=of_server, processes=processes) as server,
        make(server.address, {"num_envs": 2}) as env,
        pytest.raises(KeyError, match=r"no property 'lvl'; properties: .*batch\.num_envs.*'level'"),
    ):
        PropertiesExtension(env.connection).read("lvl")


# What a server says in the TLS handshake (RFC 8446, 6: a record of an alert).

ALERTS: dict[int, str] = {
    40: "client certificate",
    42: "client certificate",
    48: "client certificate",
    49: "client certificate",
    116: "client certificate",
    70: "another version of TLS",
    112: "no certificate for the host",
    120: r"does not speak HTTP/2.*configure the proxy to offer HTTP/2",
    80: "matching credentials",
}


def alerting(code: int) -> contextlib.AbstractContextManager[str]:
    """A server that answers each handshake with an alert."""

    def answer(accepted: socket.socket) -> None:
        accepted.recv(65_536)
        accepted.sendall(bytes([21, 3, 3, 0, 2, 2, code]))

    return answering_socket(answer)


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    _, certificate = self_signed(tmp_path_factory.mktemp("tls"))
    return Tls(ca=certificate)


@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("code", ALERTS)
def test_an_alert_of_tls_says_what_it_means(code: int, transport: Any, trusting: Tls) -> None:
    expected = ALERTS[code]
    with alerting(code) as address, pytest.raises(ConnectionLostError, match=expected) as caught:
        dm_env_rpc_client.connect(address, credentials=trusting, transport=transport, timeout=5)
    if expected != "client certificate":
        assert "client certificate" not in str(caught.value)


# A process without descriptors.

_WITHOUT = """
import os, resource, sys
import dm_env_rpc_client
transport, other, address = sys.argv[1:]
dm_env_rpc_client.make(other, transport=transport).close()
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
try:
    dm_env_rpc_client.make(address, transport=transport, timeout=2)
except dm_env_rpc_client.errors.ConnectionLostError as error:
    os.write(1, str(error).encode())
os._exit(0)
"""


@pytest.mark.parametrize(
    ("transport", "host"),
    [("http2", "localhost"), ("http2", "127.0.0.1"), ("grpc", "localhost"), ("grpc", "127.0.0.1")],
)
def test_a_client_without_descriptors_is_told_so(transport: str, host: str) -> None:
    # What the first connection imports, and starts, is there when there are none left.
    with serve(Catch, "localhost:0") as other, serve(Catch, "localhost:0") as server:
        address = server.address.replace("localhost", host)
        finished = subprocess.run(
            [sys.executable, "-c", _WITHOUT, transport, other.address, address],
            capture_output=True,
            check=False,
            timeout=60,
        )
    text = finished.stdout.decode()
    assert "could not connect to" in text, finished.stderr
    for part in ("no file descriptors left in this process, which may have 200", "ulimit -n"):
        assert part in text
    assert "credentials" not in text
    assert text.isprintable()


# Monkey patching that takes epoll away, as gevent's does.


@pytest.fixture
def without_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "epoll")


PATCHED: dict[str, Callable[[], Any]] = {
    "serve": lambda: serve(Catch, transport="http2"),
    "processes": lambda: serve(Catch, processes=2),
}


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
@pytest.mark.parametrize("name", PATCHED)
def test_a_process_whose_select_has_no_epoll(without_epoll: None, name: str) -> None:
    Mistake(
        PATCHED[name], " select.epoll", "monkey patching, such as gevent's",
        "serve in a process without it",
    ).check()  # fmt: skip


def test_a_process_without_epoll_can_serve_over_grpc(without_epoll: None) -> None:
    with serve(Catch) as server:
        assert server.address
