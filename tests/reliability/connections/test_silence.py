"""A server whose environment keeps the GIL is not given up too soon, and a frozen one is."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    create_and_join_world,
    make,
)
from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.connection_group import ConnectionGroup
from dm_env_rpc_client.launch import standalone
from dm_env_rpc_client.protocol import pipeline
from tests.reliability.recording import Seen
from tests.support.holding import hold
from tests.support.loops import opened
from tests.support.scripted import served_echo
from tests.support.stopwatch import time_limit

ROOT = Path(__file__).parents[3]
KINDS = ["plain", "main thread", "processes", "one file"]


def given_up() -> Any:
    return pytest.raises(
        ConnectionLostError, match=r"did not answer a probe for [\d.]+ s; .*keepalive_timeout"
    )


@contextlib.contextmanager
def served(kind: str) -> Iterator[str]:
    """The address of a server of `Holding`, in a process of its own."""
    argv = ["-m", "tests.support.holding", kind, "localhost:0"]
    if kind == "one file":
        file = Path(standalone.__file__).parent / "dm_env_rpc_server.py"
        argv = [str(file), "tests.support.holding:Holding", "--address", "localhost:0"]
    process = subprocess.Popen(
        [sys.executable, *argv], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeouts are a tenth or less, except where a busy machine must not exceed them."""
    for module in ("transports.net.keepalive", "transports.http2.client.connection"):
        monkeypatch.setattr(f"dm_env_rpc_client.{module}.LOOK_SECONDS", 0.1)
    for module in ("client.connection", "client.async_pipeline"):
        monkeypatch.setattr(f"dm_env_rpc_client.{module}._LOOK_SECONDS", 0.1)
    monkeypatch.setattr(pipeline, "KEEPALIVE_SECONDS", 0.5)
    monkeypatch.setattr(pipeline, "LOADING_KEEPALIVE_SECONDS", 60.0)


SHORT = {"create": 1.0, "reset": 1.0, "step": 60.0}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("kind", "is_async"),
    [("plain", False), ("plain", True), ("main thread", False), ("one file", False)],
)
def test_a_constructor_and_a_reset_may_keep_the_gil_for_longer_than_a_step(
    kind: str, is_async: bool
) -> None:
    with served(kind) as address, opened(is_async, address, SHORT) as env:
        assert env.reset().first()
        with time_limit(5), given_up():
            env.step({"paddle": 1})


def test_a_server_of_several_processes_answers_for_an_environment_that_keeps_the_gil() -> None:
    with served("processes") as address, make(address, {"step": 3.5}, keepalive_timeout=2.0) as env:
        assert env.reset().first()
        assert env.step({"paddle": 1}).mid()


@pytest.mark.parametrize("where", ["create", "reset"])
def test_the_users_timeout_holds_for_all_requests(where: str) -> None:
    with (
        served("plain") as address,
        time_limit(10),
        given_up(),
        make(address, {where: 60.0}, keepalive_timeout=1.0) as env,
    ):
        env.reset()


@pytest.mark.usefixtures("short")
def test_steps_beside_a_reset_on_one_connection_wait_as_long_as_it() -> None:
    with served("plain") as address:
        group = ConnectionGroup(address, ConnectOptions())
        connections = [group.open() for _ in range(2)]
        stepping, resetting = (
            create_and_join_world(connection, {"reset": seconds}, {})[0]
            for connection, seconds in zip(connections, (0.0, 2.0), strict=True)
        )
        stepping.reset()
        began = resetting.step_async({"paddle": 1})
        assert stepping.step({"paddle": 1}).mid()
        assert began.result().first()
        for connection in connections:
            connection.close()
        group.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
def test_30_seconds_of_the_gil(kind: str) -> None:
    settings = {"create": 30.0, "reset": 30.0, "step": 30.0}
    with served(kind) as address:
        with make(address, settings, keepalive_timeout=45.0) as env:
            assert env.reset().first()
            assert env.step({"paddle": 1}).mid()
        with make(address, settings) as env:
            assert env.reset().first()
            if kind == "processes":
                assert env.step({"paddle": 1}).mid()
                return
            with time_limit(20), given_up():
                env.step({"paddle": 1})


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "grpcio"])
def test_a_client_may_keep_its_gil_for_75_seconds_between_two_steps(kind: str) -> None:
    with served(kind) as address, make(address) as env:
        env.reset()
        for _ in range(5):
            assert env.step({"paddle": 1}).mid()
        waiting = env.step_async({"paddle": 1})
        hold(75.0)
        assert waiting.result().mid()
        assert env.step({"paddle": 1}).mid()


ALIVE_SECONDS = 30.0

NOTICED_SECONDS = 20.0
"""How soon after it froze."""


@pytest.mark.row(38)
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_that_freezes_after_30_seconds_of_a_step_is_noticed(
    is_async: bool, transport: str, seen: Seen
) -> None:
    frozen: list[float] = []
    noticed: list[float] = []

    with served_echo() as server:

        def freeze() -> None:
            server.signal(signal.SIGSTOP)
            frozen.append(time.monotonic())

        timer = threading.Timer(ALIVE_SECONDS, freeze)
        timer.start()
        with (
            time_limit(ALIVE_SECONDS + NOTICED_SECONDS + 2.0) as it,
            opened(is_async, server.address, {"seconds": 600.0}) as env,
        ):
            env.reset()
            with pytest.raises(ConnectionLostError, match="did not answer a probe"):
                env.step({"value": 1})
            noticed.append(time.monotonic())
        timer.join()
    after = noticed[0] - frozen[0]
    seen(frozen_servers=1, **{f"{transport}_noticed_after_s": after})
    assert 0 < after < NOTICED_SECONDS + it.allowance


# Machines that cannot be reached.

UNREACHABLE = "no longer acknowledges"


@contextlib.contextmanager
def networked() -> Iterator[list[str]]:
    """The first part of a command that runs in a network of its own; see `unreachable.py`."""
    command = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))) or subprocess.run(
        [*command, "ip", "link", "add", "va", "type", "veth", "peer", "name", "vb"],
        check=False, capture_output=True,
    ).returncode:  # fmt: skip
        pytest.skip("needs permission to make network namespaces")
    yield command


@pytest.mark.parametrize(
    ("where", "limit"),
    [
        ("reset", 6.0),
        pytest.param("reset", 20.0, marks=pytest.mark.slow),
        pytest.param("step", 20.0, marks=pytest.mark.slow),
        pytest.param("idle", 20.0, marks=pytest.mark.slow),
        pytest.param("late", 20.0, marks=pytest.mark.slow),
    ],
)
def test_a_machine_that_cannot_be_reached_is_noticed_in_any_request(
    where: str, limit: float, transport: str
) -> None:
    with networked() as command:
        program = [sys.executable, "-m", "tests.reliability.connections.unreachable"]
        finished = subprocess.run(
            [*command, *program, transport, where, str(limit)],
            cwd=ROOT, check=False, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    seconds, text = finished.stdout.split(" ", 1)
    assert UNREACHABLE in text
    assert float(seconds) < limit
