"""Servers in other languages that stop, or are killed, say so in the package's own errors."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from dm_env_rpc_client import ConnectionLostError, make
from dm_env_rpc_client.transports.http2 import client_connection, framing, keepalive
from tests.interop.conftest import Start
from tests.scripted import time_limit

DELAY = 30.0
"""Seconds of a step that does not end while a test looks."""

NOTICED_SECONDS = 1.0
STOPPED_SECONDS = 20.0


def test_a_server_that_is_killed_in_a_step_is_noticed_at_once(start: Start, transport: Any) -> None:
    server, address = start()
    with time_limit(30), make(address, {"delay": DELAY}, transport=transport) as env:
        futures = [env.step_async({}) for _ in range(3)]
        time.sleep(0.2)
        server.kill()
        with time_limit(NOTICED_SECONDS):
            for future in futures:
                with pytest.raises(ConnectionLostError):
                    future.result(20)
        with pytest.raises(ConnectionLostError):
            env.step({})


def test_a_server_that_is_killed_between_steps_is_noticed(start: Start, transport: Any) -> None:
    server, address = start()
    with time_limit(30), make(address, transport=transport) as env:
        env.reset()
        server.kill()
        with pytest.raises(ConnectionLostError):
            env.step({})


def test_a_server_that_stops_breaks_off_a_step(start: Start, transport: Any) -> None:
    server, address = start()
    with time_limit(60), make(address, {"delay": 1.0}, transport=transport) as env:
        future = env.step_async({})
        time.sleep(0.2)
        server.begin_to_stop()
        # It may let a step that is under way come to its end, and no other.
        with contextlib.suppress(ConnectionLostError):
            future.result(20)
        with pytest.raises(ConnectionLostError):
            env.step({})


def test_a_server_that_stops_between_steps_is_noticed(start: Start, transport: Any) -> None:
    server, address = start()
    with time_limit(30), make(address, transport=transport) as env:
        env.reset()
        server.begin_to_stop()
        stopped = time.monotonic()
        connection = env._connection
        assert connection is not None
        with contextlib.suppress(ConnectionLostError):
            while connection.is_usable and time.monotonic() < stopped + STOPPED_SECONDS:
                env.step({})
        assert time.monotonic() < stopped + STOPPED_SECONDS
        with pytest.raises(ConnectionLostError) as error:
            env.step({})
        assert address in str(error.value)


@pytest.mark.row(38)
def test_row_38_servers_acknowledge_any_number_of_probes_in_one_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third PING of a silent step makes gRPC servers end the connection; probes do not."""
    probes: list[None] = []
    probe = framing.Framing.probe
    monkeypatch.setattr(client_connection, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(keepalive, "KEEPALIVE_SECONDS", 0.05)

    def counted(self: framing.Framing) -> None:
        probes.append(None)
        probe(self)

    monkeypatch.setattr(framing.Framing, "probe", counted)
    _, address = start()
    with time_limit(30), make(address, {"delay": 2.0}, transport="http2") as env:
        env.reset()
        env.step({})
    assert len(probes) >= 8
