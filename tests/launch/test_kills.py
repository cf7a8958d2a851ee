"""Launched servers, containers, what watches over them, and clients are killed at random moments.

Nothing is left running, no TimeStep is wrong, and every death is told.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import DmEnvAdaptor, Restart, make
from tests.launch.docker_daemon import Daemon
from tests.launch.processes import (
    ECHO,
    ROOT,
    Launcher,
    is_alive,
    keepers,
    servers_of,
    supervisors,
)
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.scripted import settles

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")

RESTART = Restart(attempts=1000, backoff=0.01, max_backoff=0.1)


def kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


@contextlib.contextmanager
def in_background(action: Callable[[], None]) -> Iterator[threading.Event]:
    """Calls a function again and again; yields an event that is set when it says it is done."""
    done, is_over = threading.Event(), threading.Event()

    def run() -> None:
        with contextlib.suppress(StopIteration):
            while not is_over.is_set():
                action()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        is_over.set()
        thread.join()


class Moments:
    """When to kill: at any moment, which may be while a server starts, or while it is stepped.

    Attributes:
      stepped: set by each step within a sequence.
    """

    def __init__(self, seed: int):
        self.stepped = threading.Event()
        self._chance = random.Random(seed)
        self._turn = 0

    def wait(self) -> None:
        self._turn += 1
        if self._turn % 2:
            self.stepped.clear()
            self.stepped.wait(60)
            time.sleep(self._chance.uniform(0.0, 0.1))  # At any moment of its steps.
        else:
            time.sleep(self._chance.uniform(0.0, 1.5))  # At any moment, also while it starts.


def step_until(env: DmEnvAdaptor, done: threading.Event, moments: Moments) -> tuple[int, int]:
    """Steps an Echo and checks every TimeStep; returns how many there were, and how many LAST."""
    last_seen = int(env.reset().observation["value"])
    assert last_seen == -1
    steps = losses = 0
    is_running = True
    while not done.is_set() or not is_running:
        steps += 1
        timestep = env.step({"value": steps})
        value = int(timestep.observation["value"])
        if timestep.first():
            assert not is_running
            assert (value, timestep.reward, timestep.discount) == (-1, None, None)
        elif timestep.last():
            assert is_running
            assert env.interruption is not None
            assert (value, timestep.reward, timestep.discount) == (last_seen, 0.0, 1.0)
            losses += 1
        else:
            assert is_running
            assert (value, timestep.reward, timestep.discount) == (steps, 1.0, 1.0)
            moments.stepped.set()
        is_running = not timestep.last()
        last_seen = value
    return steps, losses


def kill_while_it_steps(
    address: Any, count: int, victims: Callable[[], Iterable[int]], seen: Seen
) -> None:
    """Steps an environment while its victims, who are found anew each time, are killed."""
    moments = Moments(count)
    kills = 0

    def kill_all() -> None:
        nonlocal kills
        if kills >= count:
            raise StopIteration
        moments.wait()
        kills += sum(map(kill, victims()))

    with make(address, restart=RESTART) as env, in_background(kill_all) as done:
        steps, losses = step_until(env, done, moments)
        assert env.restarts >= losses >= max(1, count // 3)
        seen(kills=kills, steps=steps, restarts=env.restarts)


@pytest.mark.parametrize("victim", ["server", "supervisor"])
@counts(2, 50)
def test_servers_that_are_killed(
    count: int, victim: str, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    temporary = tempfile.TemporaryDirectory()  # `tmp_path` is long for the path of a socket.
    monkeypatch.setattr(tempfile, "tempdir", temporary.name)
    mark = uuid.uuid4().hex
    launcher = Launcher(env={"MARK": mark})

    def victims() -> Iterator[int]:
        # Those that start are not among the launcher's yet.
        for supervisor in supervisors():
            yield from servers_of(supervisor) if victim == "server" else [supervisor]

    kill_while_it_steps(launcher, count, victims, seen)
    assert launcher.all_ended()
    assert settles(lambda: not list(marked(mark)), 20)
    assert settles(lambda: not os.listdir(temporary.name), 20)
    temporary.cleanup()


CLIENT = f"""
from dm_env_rpc_client import make
env = make({ECHO!r})
timestep = env.reset()
step = 0
while True:
    step += 1
    assert env.step({{"value": step}}).observation["value"] == step
    if step == 1:
        print("stepped", flush=True)
"""


@counts(3, 50)
def test_clients_that_are_killed(count: int, tmp_path: Path, seen: Seen) -> None:
    chance = random.Random(count)
    served = 0
    for number in range(count):
        mark = uuid.uuid4().hex
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            cwd=ROOT,
            env={**os.environ, "MARK": mark, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            # Every other one is served, whatever the machine does besides.
            if number % 2:
                time.sleep(chance.uniform(0.0, 3.0))  # At any moment.
            else:
                assert client.stdout is not None
                assert client.stdout.readline() == "stepped\n"
            assert client.poll() is None
            served += len(list(marked(mark))) > 1
            client.kill()
        assert settles(lambda mark=mark: not list(marked(mark)), 20)  # type: ignore[misc]
    assert served >= count / 2
    # What was killed before there was a supervisor may leave an empty folder behind.
    assert [path for path in tmp_path.iterdir() if any(path.iterdir())] == []
    seen(clients=count, with_servers=served)


def marked(mark: str) -> Iterator[int]:
    """Yields the processes with a text in the environment that they were started with."""
    for each in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            is_running = each.isdigit() and is_alive(int(each))
            if is_running and mark.encode() in Path(f"/proc/{each}/environ").read_bytes():
                yield int(each)


@pytest.mark.parametrize("victim", ["container", "keeper"])
@counts(2, 50)
def test_processes_of_containers_that_are_killed(
    count: int, victim: str, daemon: Daemon, seen: Seen
) -> None:
    def containers() -> Iterator[int]:
        for container in list(daemon.containers.values()):
            if container.process is not None and not container.has_ended.is_set():
                yield container.process.pid

    victims: Callable[[], Iterable[int]] = keepers if victim == "keeper" else containers
    kill_while_it_steps("docker:owner/echo", count, victims, seen)
