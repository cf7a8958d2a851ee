"""A proxy changes nothing between a client and a server, and records both."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from typing import Any

import grpc
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import Tls, dm_env_rpc_pb2
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
)
from dm_env_rpc_client.recording import proxy, read, replay
from dm_env_rpc_client.server import Catch, Race, Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.recording.sessions import assert_same, entries, play
from tests.support.certificates import self_signed
from tests.support.scripted import settles
from tests.support.stopwatch import patience


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_a_session_through_a_proxy_is_the_same_and_is_recorded(
    server: Server, path: Path, transport: Any
) -> None:
    expected = play(server.address, 60)
    with proxy(server.address, path) as running:
        assert_same(expected, play(running.address, 60, transport=transport))
    recording = read(path)
    assert recording.is_complete
    assert recording.connections[1].address == server.address
    assert sum(map(len, recording.episodes)) == 61
    with replay(path) as replayed:
        assert_same(expected, play(replayed.address, 60))


def test_agents_that_wait_for_one_another_do_not_wait_for_ever(path: Path) -> None:
    with (
        serve(Race()) as server,
        proxy(server.address, path) as running,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):

        def run(_: int) -> int:
            with (
                dm_env_rpc_client.connect(running.address) as connection,
                dm_env_rpc_client.join_world(connection, "") as env,
            ):
                steps = [env.reset()]
                while not steps[-1].last():
                    steps.append(env.step(dict.fromkeys(env.action_spec(), 1)))
                return len(steps)

        assert min(pool.map(run, range(2))) > 1
    assert len(read(path).connections) == 2


@pytest.mark.certificates
def test_the_server_may_require_tls_and_a_token_which_is_forwarded_and_not_recorded(
    path: Path, tmp_path: Path
) -> None:
    key, crt = self_signed(tmp_path)
    tls = Tls(cert=crt, key=key)
    with (
        serve(Catch, credentials=tls, token="hunter2") as server,
        proxy(server.address, path, credentials=Tls(ca=crt)) as running,
    ):
        assert len(play(running.address, 5, token="hunter2")) == 6
        with pytest.raises(ConnectionLostError, match="UNAUTHENTICATED") as refused:
            dm_env_rpc_client.make(running.address)
        assert refused.value.code == "UNAUTHENTICATED"
    connection = read(path).connections[1]
    assert connection.metadata["tls"] == "true"
    assert b"hunter2" not in path.read_bytes() + b"".join(each.message for each in entries(path))


def test_metadata_is_forwarded(path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def script(requests: Any, context: grpc.ServicerContext) -> Any:
        seen.append(dict(context.invocation_metadata()))
        for _ in requests:
            yield dm_env_rpc_pb2.EnvironmentResponse(create_world={})

    sent: list[tuple[str, str | bytes]] = [("x-run", "7"), ("x-key-bin", b"\x00\xff")]
    with ScriptedServer(script) as server, proxy(server.address, path, token="own") as running:
        with dm_env_rpc_client.connect(running.address, metadata=sent) as connection:
            connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        with dm_env_rpc_client.connect(running.address, token="theirs") as connection:
            connection.send(dm_env_rpc_pb2.CreateWorldRequest())
    assert {"x-run": "7", "x-key-bin": b"\x00\xff"}.items() <= seen[0].items()
    # The token of the proxy is for clients that send none.
    assert seen[0]["authorization"] == "Bearer own"
    assert seen[1]["authorization"] == "Bearer theirs"


def test_a_server_that_ends_a_stream_is_told(path: Path) -> None:
    with (
        ScriptedServer(lambda requests, _: iter(())) as server,
        proxy(server.address, path) as running,
        dm_env_rpc_client.connect(running.address) as connection,
        pytest.raises(ConnectionLostError, match="the proxy says"),
    ):
        connection.send(dm_env_rpc_pb2.CreateWorldRequest())


def test_a_client_that_goes_away_while_a_step_waits(path: Path) -> None:
    with serve(Race()) as server, proxy(server.address, path) as running:
        connection = dm_env_rpc_client.connect(running.address, request_timeout=patience(0.5))
        env = dm_env_rpc_client.join_world(connection, "")
        with pytest.raises(DeadlineExceededError):
            env.reset()  # Nobody else is there.
        connection.close()
        assert settles(lambda: server.agent_count == 0)
    assert len(entries(path)) == 3
