"""Servers dial in to the program that uses their environments."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    EnvironmentsFailedError,
    Incoming,
    Restart,
    SpecError,
    Tls,
    connect,
    dm_env_rpc_pb2,
    listen,
    make,
    make_async,
)
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server, serve
from tests.support.certificates import Authority
from tests.support.environments import Echo
from tests.support.ports import HeldPort
from tests.support.programs import run_python
from tests.support.scripted import descriptor_count, settles

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")

TRANSPORTS = ["http2"]
PATIENCE = 30.0


@pytest.fixture
def incoming() -> Iterator[Incoming]:
    with listen("localhost:0") as found:
        yield found


def check_steps(env: Any) -> None:
    assert env.reset().observation["value"] == -1
    for value in range(3):
        assert env.step({"value": value}).observation["value"] == value


def test_one_environment(incoming: Incoming) -> None:
    with serve(Echo, dial=incoming.address) as server:
        assert server.address == incoming.address
        with incoming.make({"length": 5}, timeout=PATIENCE) as env:
            check_steps(env)
            assert (incoming.waiting, server.world_count) == (0, 1)
        # The server has its environment back, and offers it again.
        assert incoming.wait_for(1, PATIENCE)
        assert server.world_count == 0
        with make(incoming, timeout=PATIENCE) as env:
            check_steps(env)
        assert server.errors == []


def test_a_connection(incoming: Incoming) -> None:
    with serve(Echo, dial=incoming.address), connect(incoming, timeout=PATIENCE) as connection:
        assert incoming.address in connection.address
        connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        with pytest.raises(ConnectionLostError, match="cannot be connected to again"):
            connection.reopen()


def test_a_server_dials_until_a_program_listens() -> None:
    with HeldPort() as port, serve(Echo, dial=port.address) as server:
        for _ in range(2):  # And again when that program has ended.
            with listen(port.address) as incoming, incoming.make(timeout=PATIENCE) as env:
                check_steps(env)
        assert server.errors == []


def test_what_a_server_says_while_it_cannot_dial(caplog: pytest.LogCaptureFixture) -> None:
    with HeldPort() as port, caplog.at_level(logging.WARNING), serve(Echo, dial=port.address):
        assert settles(lambda: bool(caplog.messages), PATIENCE)
        assert f"could not dial in to {port.address}: Connection refused" in caplog.text
        time.sleep(0.5)  # It goes on to dial meanwhile.
    assert len(caplog.messages) == 1  # Not once for each attempt.


def test_nobody_dials_in(incoming: Incoming) -> None:
    with pytest.raises(DeadlineExceededError, match="no environment dialed in to localhost:"):
        incoming.make(timeout=0.05)
    begun = time.monotonic()
    with pytest.raises(EnvironmentsFailedError, match="no environment dialed in"):
        BatchedEnvironment(incoming, 40, timeout=0.2)
    assert time.monotonic() - begun < 10  # Not once for each environment.


def test_those_who_wait_are_told_of_the_end(incoming: Incoming) -> None:
    errors: list[Exception] = []

    def wait() -> None:
        try:
            incoming.make(timeout=None)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    incoming.close()
    thread.join(PATIENCE)
    assert [type(error) for error in errors] == [ConnectionClosedError]
    with pytest.raises(ConnectionClosedError):
        incoming.make()
    incoming.close()


def test_environments_stay_when_nobody_else_can_dial_in(incoming: Incoming) -> None:
    with serve(Echo, dial=incoming.address), incoming.make(timeout=PATIENCE) as env:
        incoming.close()
        check_steps(env)


@pytest.mark.parametrize("servers", [1, 4])
def test_a_batch(incoming: Incoming, servers: int) -> None:
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(serve(Echo, dial=incoming.address, dial_environments=8))
            for _ in range(servers)
        ]
        assert incoming.wait_for(8 * servers, PATIENCE)
        envs = stack.enter_context(BatchedEnvironment(incoming, 8, timeout=PATIENCE))
        # All that wait have a part, and each part has one socket.
        assert [server.stats().streams for server in running] == [8 // servers] * servers
        assert incoming.waiting == 0 or settles(lambda: incoming.waiting == 8 * servers - 8)
        envs.reset()
        for step in range(5):
            actions = np.arange(8) + step
            timestep = envs.step({"value": actions})
            np.testing.assert_array_equal(timestep.observation["value"], actions)


def test_what_is_left_is_offered_to_others(incoming: Incoming) -> None:
    with serve(Echo, dial=incoming.address, dial_environments=8) as server:
        with (
            BatchedEnvironment(incoming, 5, timeout=PATIENCE),
            BatchedEnvironment(incoming, 3, timeout=PATIENCE),
        ):
            assert server.stats().streams == 8
            with pytest.raises(DeadlineExceededError):
                incoming.make(timeout=0.1)
        with contextlib.closing(RemoteVectorEnv(incoming, 8, timeout=PATIENCE)) as envs:
            assert envs.reset()[0].tolist() == [-1] * 8


def test_single_environments_share_a_server(incoming: Incoming) -> None:
    with (
        serve(Echo, dial=incoming.address, dial_environments=3) as server,
        incoming.make(timeout=PATIENCE) as first,
        incoming.make(timeout=PATIENCE) as second,
        incoming.make(timeout=PATIENCE) as third,
    ):
        for env in (first, second, third):
            check_steps(env)
        assert server.world_count == 3


def test_a_server_of_several_processes(incoming: Incoming) -> None:
    with serve(
        "tests.support.environments:Echo", dial=incoming.address, dial_environments=5, processes=2
    ) as server:
        assert incoming.wait_for(5, PATIENCE)
        with BatchedEnvironment(incoming, 5, timeout=PATIENCE) as envs:
            envs.reset()
            assert envs.step({"value": np.arange(5)}).observation["value"].tolist() == [*range(5)]
            assert server.world_count == 5
        assert settles(lambda: server.world_count == 0, PATIENCE)


def test_a_server_that_waits_takes_the_place_of_one_that_is_lost(incoming: Incoming) -> None:
    first = serve(Echo, dial=incoming.address)
    with (
        first,
        incoming.make(timeout=PATIENCE, restart=Restart(backoff=0.01)) as env,
        serve(Echo, dial=incoming.address) as second,
    ):
        assert incoming.wait_for(1, PATIENCE)
        check_steps(env)
        first.stop(0.0)
        lost = env.step({"value": 3})
        assert (lost.last(), lost.discount, lost.observation["value"]) == (True, 1.0, 2)
        assert isinstance(env.interruption, ConnectionLostError)
        assert env.step({"value": 4}).first()
        assert env.step({"value": 5}).observation["value"] == 5
        assert (env.restarts, second.world_count) == (1, 1)


def test_tokens(incoming: Incoming, caplog: pytest.LogCaptureFixture) -> None:
    with listen("localhost:0", token="right") as guarded:
        with contextlib.ExitStack() as stack:
            for token in ("wrong", None):
                server = stack.enter_context(serve(Echo, dial=guarded.address, token=token))
            assert settles(lambda: guarded.refused >= 2, PATIENCE)
            with pytest.raises(DeadlineExceededError, match=r"refused.*token"):
                guarded.make(timeout=0.1)
            assert guarded.waiting == server.stats().all_streams == 0
            assert settles(lambda: "UNAUTHENTICATED" in caplog.text, PATIENCE)
        assert "wrong" not in caplog.text.replace("wrong credentials", "")
        served = serve(Echo, dial=guarded.address, token="right")
        with served, guarded.make(timeout=PATIENCE) as env:
            check_steps(env)
    # One that nobody asks for does no harm.
    served = serve(Echo, dial=incoming.address, token="right")
    with served, incoming.make(timeout=PATIENCE) as env:
        check_steps(env)


@pytest.mark.parametrize("processes", [None, 2])
def test_tls_with_client_certificates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, processes: int | None
) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    trainer, engine = authority.issue("trainer"), authority.issue("engine")
    stranger = other.issue("stranger")
    with listen(
        "localhost:0", credentials=Tls(cert=trainer.cert, key=trainer.key, ca=authority.ca)
    ) as incoming:

        def dialing(**files: Any) -> Server:
            credentials = Tls(**files) if files else None
            return serve(
                "tests.support.environments:Echo",
                dial=incoming.address,
                dial_environments=4,
                credentials=credentials,
                processes=processes,
            )

        # Plaintext, no certificate, that of another authority; and a server that trusts another.
        for files in (
            {},
            {"ca": authority.ca},
            {"ca": authority.ca, "cert": stranger.cert, "key": stranger.key},
            {"ca": other.ca, "cert": engine.cert, "key": engine.key},
        ):
            refused = incoming.refused
            caplog.clear()
            with dialing(**files):
                assert settles(lambda n=refused: incoming.refused > n, PATIENCE)  # type: ignore[misc]
                assert settles(lambda: "could not dial in" in caplog.text, PATIENCE)
            assert incoming.waiting == 0
        with dialing(ca=authority.ca, cert=engine.cert, key=engine.key):
            assert incoming.wait_for(4, PATIENCE)
            with BatchedEnvironment(incoming, 4, timeout=PATIENCE) as envs:
                envs.reset()
                for step in range(20):
                    values = np.arange(4) * step
                    timestep = envs.step({"value": values})
                    np.testing.assert_array_equal(timestep.observation["value"], values)


def test_a_unix_socket(tmp_path: Path) -> None:
    with (
        listen(f"unix:{tmp_path}/socket") as incoming,
        serve(Echo, dial=incoming.address),
        incoming.make(timeout=PATIENCE) as env,
    ):
        check_steps(env)


FORKS = """
import os
from dm_env_rpc_client import ConnectionClosedError, listen
from dm_env_rpc_client.server import serve
from tests.support.environments import Echo

def check(env):
    assert env.reset().observation["value"] == -1
    assert env.step({"value": 7}).observation["value"] == 7

with (
    listen("localhost:0") as incoming,
    serve(Echo, dial=incoming.address, dial_environments=2) as server,
    incoming.make(timeout=30) as env,
):
    assert incoming.wait_for(1, 30)
    pid = os.fork()
    if not pid:
        try:
            try:
                incoming.make(timeout=0.1)
            except ConnectionClosedError:
                incoming.close()
                server.stop()
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    check(env)
    with incoming.make(timeout=30) as other:
        check(other)
"""


def test_what_a_forked_child_does_is_not_seen_by_its_parent() -> None:
    run_python("-W", "ignore:This process:DeprecationWarning", "-c", FORKS, timeout=90)


def test_invalid_arguments(incoming: Incoming, tmp_path: Path) -> None:
    address = incoming.address
    wrong: list[dict[str, Any]] = [
        {"dial": address, "address": "localhost:5"},
        {"dial": address, "transport": "grpc"},
        {"dial": address, "dial_environments": 0},
        {"dial": address, "dial_environments": True},
        {"dial": address, "dial_environments": 1, "processes": 2},
        {"dial": address, "token": "two words"},
        {"dial": "192.0.2.1:5000"},
        {"dial": "nowhere", "insecure": True},
        {"dial": address, "dial_environments": 3, "max_connections": 2},
    ]
    for arguments in wrong:
        with pytest.raises(SpecError):
            serve(Echo, **arguments)
    with pytest.raises(SpecError, match="plaintext"):
        listen("0.0.0.0:0")
    with pytest.raises(SpecError, match="a token is"):
        listen("localhost:0", token="")
    for arguments in ({"token": "x"}, {"insecure": True}, {"transport": "grpc"}):
        with pytest.raises(SpecError, match="to listen"):
            make(incoming, **arguments)
    with pytest.raises(OSError, match="cannot listen"):
        listen(address)
    assert repr(incoming) == f"<Incoming at {address}: 0 environments wait>"


def test_asyncio_is_refused(incoming: Incoming) -> None:
    with pytest.raises(SpecError, match="use make, not make_async"):
        asyncio.run(make_async(incoming))


def test_descriptors_come_back(incoming: Incoming) -> None:
    with serve(Echo, dial=incoming.address):
        incoming.make(timeout=PATIENCE).close()
        assert incoming.wait_for(1, PATIENCE)
        before = descriptor_count()
        for _ in range(20):
            incoming.make(timeout=PATIENCE).close()
        assert incoming.wait_for(1, PATIENCE)
        assert settles(lambda: descriptor_count() <= before, PATIENCE)
