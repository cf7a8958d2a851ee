"""Ports are given to one server at a time, and kept from others."""

from __future__ import annotations

import concurrent.futures
import os
import socket

from dm_env_rpc_client.launch.ports import Port


def bound() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_no_two_at_once() -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        ports = list(executor.map(lambda _: Port(is_held=False), range(500)))
    assert len({port.number for port in ports}) == 500
    for port in ports:
        port.close()


def test_others_that_ask_for_any_port_do_not_get_it() -> None:
    # So many that a port that is not held would be among them.
    ports = [Port() for _ in range(200)]
    held = {port.number for port in ports}
    assert held.isdisjoint({bound() for _ in range(20_000)})
    for port in ports:
        port.close()


def test_a_server_gets_the_port_that_is_held_for_it() -> None:
    port = Port()
    with socket.create_server(("127.0.0.1", port.number)) as server:
        assert not port.is_foreign(os.getppid())
        port.stop_holding()
        assert port.was_taken("")
        server.close()
        assert not port.was_taken("")
    port.close()


def test_logs_tell_that_it_was_taken() -> None:
    port = Port()
    port.stop_holding()
    for text in ("OSError: [Errno 98] Address already in use", "listen EADDRINUSE: :::1"):
        assert port.was_taken(text)
    assert not port.was_taken("no licence")
    port.close()
