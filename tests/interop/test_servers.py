"""Where servers in other languages listen, how they end, and that they keep to the protocol."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import ConnectionLostError, DmEnvAdaptor, make
from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, run
from dm_env_rpc_client.transports.http2.client import connection as client_connection
from dm_env_rpc_client.transports.http2.protocol import framing
from dm_env_rpc_client.transports.net import keepalive
from tests.interop.conftest import TRANSPORTS, Start
from tests.peers.servers import SERVERS
from tests.support.stopwatch import time_limit

Shared = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets")


@pytest.mark.parametrize("place", ["a unix socket", "IPv6", "TLS"])
def test_where_servers_listen(
    place: str,
    shared: Shared,
    peer: str,
    transport: Any,
    folder: Path,
    certificate: tuple[Path, Path],
) -> None:
    how: dict[str, Any] = {}
    if place == "a unix socket":
        address = shared("--address", f"unix:{folder / peer}")
        assert address.startswith("unix:")
    elif place == "IPv6":
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"there is no IPv6 on this machine: {error}")
        address = shared("--address", "[::1]:0")
        assert address.startswith("[::1]:")
    else:
        key, crt = certificate
        address = shared("--certificate", crt, "--key", key).replace("127.0.0.1", "localhost")
        how["credentials"] = (
            ssl.create_default_context(cafile=crt)
            if transport == "http2"
            else grpc.ssl_channel_credentials(crt.read_bytes())
        )
    with make(address, {"length": 2}, transport=transport, **how) as env:
        assert env.reset().first()
        assert list(env.step({"string": ["here"]}).observation["string"]) == ["here"]
        assert env.step({}).last()


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


GATE = ("cpp",)
"""The others, which hardly ever change, are checked with -m slow."""

OPTIONS = Options(
    create_settings={"length": 10},
    invalid_create_settings={"colour": "red", "payload": "x", "length": "x", "bytes": -1},
    invalid_join_settings={"a": 1},
    reset_settings={"length": 5},
    invalid_reset_settings={"a": 1},
    several_worlds=True,
    several_agents=False,
    timeout=10.0,
    quiet_seconds=0.1,
)


@pytest.mark.parametrize(
    "peer",
    [name if name in GATE else pytest.param(name, marks=pytest.mark.slow) for name in SERVERS],
    indirect=True,
)
def test_every_peer_keeps_to_the_protocol(address: str) -> None:
    results = list(run(address, OPTIONS, CHECKS))
    assert [str(result) for result in results if result.is_finding] == []
    assert sum(result.outcome is Outcome.PASSED for result in results) >= 65
