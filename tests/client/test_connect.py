"""Opening connections: what is refused, what is waited for, what the errors say."""

from __future__ import annotations

import threading

import pytest

from dm_env_rpc_client import SpecError, connect, create_secure_channel_and_connect
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.transports.net.addresses import is_loopback
from tests.support.both_transports import EVERY
from tests.support.ports import HeldPort
from tests.support.stopwatch import time_limit
from tests.transports.raw_server import ask

TRANSPORTS = EVERY


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:1", True),
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("unix:/tmp/x", True),
        ("unix:///tmp/x", True),
        ("ipv4:127.0.0.1:1", True),
        ("dns:///localhost:1", True),
        ("env.localhost:1", True),
        ("10.0.0.1:1", False),
        ("[2001:db8::1]:1", False),
        ("localhost.example.com:1", False),
        ("127.0.0.1.example.com:1", False),
        ("example.com", False),
        ("0.0.0.0:1", False),
    ],
)
def test_loopback_addresses_are_told_from_others(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize("is_async", [False, True])
def test_plaintext_does_not_leave_this_machine_unless_asked_to(is_async: bool) -> None:
    with time_limit(0.5), pytest.raises(SpecError, match="insecure=True"):
        ask("192.0.2.1:1", is_async, timeout=30)


def test_local_credentials_for_another_machine_are_refused_at_once() -> None:
    with time_limit(0.5), pytest.raises(SpecError, match="local credentials"):
        create_secure_channel_and_connect("192.0.2.1:1", timeout=30)


def test_a_server_that_starts_late_is_waited_for() -> None:
    servers: list[Server] = []
    with HeldPort() as port:
        timer = threading.Timer(0.7, lambda: servers.append(serve(Catch, port.address)))
        timer.start()
        try:
            with connect(port.address, timeout=30) as connection:
                assert connection.is_usable
        finally:
            timer.join()
            servers[0].stop()
