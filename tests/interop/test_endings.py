"""Servers in other languages that stop, or are killed, say so in the package's own errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client import ConnectionLostError, DmEnvAdaptor, make
from dm_env_rpc_client.transports.http2.client import connection as client_connection
from dm_env_rpc_client.transports.http2.protocol import framing
from dm_env_rpc_client.transports.net import keepalive
from tests.interop.conftest import TRANSPORTS, Start
from tests.support.stopwatch import time_limit

DELAY = 30.0
"""Seconds of a step that does not end while a test looks."""

NOTICED_SECONDS = 1.0
STOPPED_SECONDS = 20.0


@contextlib.contextmanager
def over_all_transports(address: str, **settings: Any) -> Iterator[list[DmEnvAdaptor]]:
    """Environments of one server, which all of them lose together."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(make(address, settings, transport=transport))
            for transport in TRANSPORTS
        ]


def test_a_server_that_is_killed_in_a_step_is_noticed_at_once(start: Start) -> None:
    server, address = start()
    with time_limit(30), over_all_transports(address, delay=DELAY) as envs:
        futures = [env.step_async({}) for env in envs for _ in range(3)]
        time.sleep(0.2)  # The steps have begun by then; servers in other languages do not tell.
        server.kill()
        with time_limit(NOTICED_SECONDS):
            for future in futures:
                with pytest.raises(ConnectionLostError):
                    future.result(20)
        for env in envs:
            with pytest.raises(ConnectionLostError):
                env.step({})


def test_a_server_that_stops_between_steps_is_noticed(start: Start) -> None:
    server, address = start()
    with time_limit(30), over_all_transports(address) as envs:
        for env in envs:
            env.reset()
        server.begin_to_stop()
        stopped = time.monotonic()
        for env in envs:
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
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third PING of a silent step makes gRPC servers end the connection; probes do not."""
    probes: list[None] = []
    probe = framing.Framing.probe
    monkeypatch.setattr(client_connection, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(keepalive, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(keepalive, "PROBE_SECONDS", 0.02)

    def counted(self: framing.Framing) -> None:
        probes.append(None)
        probe(self)

    monkeypatch.setattr(framing.Framing, "probe", counted)
    with time_limit(30), make(address, {"delay": 1.0}, transport="http2") as env:
        env.reset()
    assert len(probes) >= 8
