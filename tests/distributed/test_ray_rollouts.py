"""Rollouts in actors of Ray: those of one process, whatever happens to the actors."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest

pytest.importorskip("ray")
from dm_env_rpc_client import (
    ConnectionClosedError,
    DeadlineExceededError,
    EnvironmentsFailedError,
    SpecError,
    make,
)
from dm_env_rpc_client.distributed import Batch, LocalRollouts, RayRollouts, RemoteEnvironments
from dm_env_rpc_client.distributed.rollouts import Worker
from dm_env_rpc_client.server import Catch, serve
from tests.adaptors.sameness import same
from tests.distributed.actors import (
    Breaking,
    Closing,
    catch,
    catching,
    counting,
    echo,
    without_pids,
)
from tests.distributed.conftest import VARIABLES, descendants_of
from tests.launch.processes import ROOT, command_of, is_alive
from tests.launch.test_ways import marked
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.environments import Echo
from tests.support.scripted import freeze, settles
from tests.support.stopwatch import patience

# Ray takes half a minute to start on a busy machine, and the extra `test` leaves it out.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("ray")]

FIRST = int(dm_env.StepType.FIRST)
LAUNCHED = "python:dm_env_rpc_client.server:Catch"


def pids(batch: Batch) -> list[int]:
    """The processes of its environments."""
    found: list[int] = batch.extras["pid"][0].tolist()
    return found


@pytest.mark.parametrize("is_batched", [False, True])
def test_trajectories_are_those_of_one_process(is_batched: bool) -> None:
    with serve(Catch) as server:
        address = server.address

        def make_env(index: int) -> dm_env.Environment:
            return make(address, {"rows": 6, "seed": index})

        remote = RemoteEnvironments(address, lambda index: {"rows": 6, "seed": index})
        in_actors = remote if is_batched else make_env
        with (
            RayRollouts(in_actors, catching, 4, 4, weights=0.1, seed=1) as rollouts,
            LocalRollouts(make_env, catching, 4, 4, weights=0.1, seed=1) as local,
        ):
            assert rollouts.observation_spec() == local.observation_spec()
            assert server.world_count == (4 if is_batched else 16) + 16
            text = "actions paddle int32 []; observations board float32 [6, 5]>"
            assert repr(rollouts) == f"<RayRollouts of 16, in 4 actors: {text}"
            for steps in (30, 1, 20):
                found, expected = rollouts.collect(steps), local.collect(steps)
                assert same(without_pids(found), without_pids(expected))
                for each in (rollouts, local):
                    each.update(0.1 + 0.01 * steps)
            assert found.version == 2
            assert len(set(pids(found))) == 4
            assert os.getpid() not in pids(found)
            found.timesteps.observation["board"][:] = 0  # It is the caller's.
        assert server.world_count == 0
        assert (rollouts.restarts, rollouts.num_lost, rollouts.num_dropped) == (0, 0, 0)


class Expected:
    """The batches of each actor, and of those after it, as one process would collect them."""

    def __init__(self, steps: int, seed: int):
        self._seed = seed
        self._steps = steps
        self._workers: dict[tuple[int, int], Worker] = {}
        self.taken: collections.Counter[tuple[int, int]] = collections.Counter()

    def check(self, batch: Batch) -> tuple[int, int]:
        """Fails unless a batch is the next of its actor; returns the actor and its restarts."""
        first, count = int(batch.env_ids[0]), len(batch.env_ids)
        key = (first // count, int(batch.restarts[0]))
        if key not in self._workers:
            ids = range(first, first + count)
            self._workers[key] = Worker(catch, catching, ids, key[0], self._seed, key[1])
            assert (batch.timesteps.step_type[0] == FIRST).all()
        expected = self._workers[key].collect(self._steps, 0, None)
        assert same(without_pids(batch), without_pids(expected))
        self.taken[key] += 1
        return key


@counts(3, 20, seconds=600)
def test_actors_that_are_killed(count: int, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(count)
    kills = 0
    caplog.set_level(logging.WARNING, "dm_env_rpc_client.distributed")
    with RayRollouts(catch, catching, 4, 4, seed=2) as rollouts:
        expected = Expected(25, 2)
        for batch in rollouts.stream(25):
            taken = expected.taken[expected.check(batch)]
            if kills < count and taken == 2:
                # It works on the third, or has finished it.
                time.sleep(chance.uniform(0, 0.02))
                os.kill(pids(batch)[0], signal.SIGKILL)
                kills += 1
            if kills == sum(restarts for _, restarts in _latest(expected)) == count:
                break
        assert rollouts.num_lost == rollouts.restarts == kills == count
        lost = [(loss.actor, loss.restarts) for loss in rollouts.losses]
        assert sorted(lost) == sorted(
            (actor, before) for actor, restarts in _latest(expected) for before in range(restarts)
        )
        assert all(loss.num_steps == 25 for loss in rollouts.losses)
    warnings = [record for record in caplog.records if "lost a batch of actor" in record.message]
    assert len(warnings) == count
    seen(kills=kills, batches=sum(expected.taken.values()), lost=rollouts.num_lost)


def _latest(expected: Expected) -> list[tuple[int, int]]:
    """Each actor with the number of times that it was seen to be replaced."""
    latest: dict[int, int] = {}
    for actor, restarts in expected.taken:
        latest[actor] = max(restarts, latest.get(actor, 0))
    return sorted(latest.items())


def test_an_actor_that_freezes_is_replaced() -> None:
    with RayRollouts(catch, catching, 2, 1, batch_timeout=patience(4.0)) as rollouts:
        pid = pids(rollouts.collect(2))[1]
        freeze(pid)
        assert rollouts.collect(2).restarts.tolist() == [0, 1]
        (loss,) = rollouts.losses
        assert isinstance(loss.error, DeadlineExceededError)
        assert settles(lambda: not is_alive(pid))


def test_an_environment_that_fails_costs_a_batch(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()

    def make_env(index: int) -> dm_env.Environment:
        return Breaking(tmp_path) if index == 2 else Echo()

    with RayRollouts(make_env, counting, 2, 2, attempts=1) as rollouts:
        with pytest.raises(EnvironmentsFailedError, match=r"environment 2 at actor 1.*engine"):
            rollouts.collect(6)
        assert (rollouts.num_lost, rollouts.num_dropped) == (2, 1)
        # One failure is left, and one is allowed.
        batch = rollouts.collect(6)
        assert batch.restarts.tolist() == [0, 0, 3, 3]
        assert batch.start.tolist() == [6, 6, 0, 0]
        assert [list(loss.error.failures) for loss in rollouts.losses] == [[2]] * 3  # type: ignore[attr-defined]


def test_what_a_policy_raises_is_raised_and_the_actors_stay() -> None:
    def policy(timestep: dm_env.TimeStep, weights: Any, generators: Any) -> Any:
        if weights is None:
            raise KeyError("no weights")
        return {"value": np.full(len(generators), weights)}

    with RayRollouts(echo, policy, 2, 1) as rollouts:
        with pytest.raises(KeyError, match="no weights"):
            rollouts.collect(3)
        rollouts.update(5)
        batch = rollouts.collect(3)
        assert (batch.restarts.tolist(), batch.version) == ([0, 0], 1)
        rollouts.update(None)
        with pytest.raises(KeyError):
            next(rollouts.stream(3))
        assert (rollouts.num_lost, rollouts.restarts) == (0, 0)


def test_a_stream_is_dropped_when_it_is_closed() -> None:
    with RayRollouts(catch, catching, 2, 2, seed=1) as rollouts:
        stream = rollouts.stream(10)
        for _ in range(4):
            next(stream)
        with pytest.raises(SpecError, match="close it first"):
            rollouts.collect(3)
        with pytest.raises(SpecError, match="close it first"):
            next(rollouts.stream(3))
        stream.close()  # type: ignore[attr-defined]
        assert rollouts.num_dropped == 2
        # What was dropped was taken, and is missing.
        assert rollouts.collect(3).start.sum() == 2 * 6 * 10
        assert rollouts.num_lost == 0


def test_an_environment_that_cannot_be_made() -> None:
    def make_env(index: int) -> dm_env.Environment:
        if index == 3:
            raise OSError(f"no room in {os.getpid()}")
        return Echo()

    with pytest.raises(EnvironmentsFailedError, match="environment 3 at actor 1") as caught:
        RayRollouts(make_env, counting, 2, 2)
    pid = int(str(caught.value.failures[3]).rpartition(" ")[2])
    assert settles(lambda: not is_alive(pid))
    with pytest.raises(SpecError, match="environment 1 has a different observation_spec"):
        RayRollouts(lambda index: Catch(rows=4 + index), catching, 2, 1)


def test_actors_for_which_there_is_no_room() -> None:
    with pytest.raises(DeadlineExceededError, match=r"1 of 1 actors .*within 0.5 s.*CPU"):
        RayRollouts(echo, counting, start_timeout=0.5, actor_options={"num_cpus": 5})


def test_close_closes_environments_and_ends_actors(tmp_path: Path) -> None:
    def make_env(index: int) -> dm_env.Environment:
        return Closing(tmp_path / str(index))

    with RayRollouts(make_env, counting, 2, 2) as rollouts:
        found = set(pids(rollouts.collect(1)))
    assert len(found) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]
    assert settles(lambda: not any(map(is_alive, found)))
    rollouts.close()
    with pytest.raises(ConnectionClosedError):
        rollouts.collect(1)


def test_launched_servers_end_with_their_actor() -> None:
    mark = uuid.uuid4().hex

    def make_env(index: int) -> dm_env.Environment:
        os.environ["LAUNCHED_FOR"] = mark
        return make(LAUNCHED, {"seed": index, "rows": 6})

    with RayRollouts(make_env, catching, 1, 2, seed=1) as rollouts:
        batch = rollouts.collect(5)
        first = set(marked(mark))
        assert len(first) == 6  # Each server has a process that watches over it, and a guard.
        os.kill(pids(batch)[0], signal.SIGKILL)
        again = rollouts.collect(5)
        assert same(again.timesteps.step_type, batch.timesteps.step_type)
        assert settles(lambda: not any(map(is_alive, first)), 20)
        assert len(set(marked(mark))) == 6
    assert settles(lambda: not set(marked(mark)), 20)


DRIVER = f"""
import ray
from dm_env_rpc_client import make
from dm_env_rpc_client.distributed import RayRollouts
from tests.distributed.actors import catching
from tests.distributed.conftest import start
start(ray)
rollouts = RayRollouts(lambda index: make({LAUNCHED!r}, {{"rows": 6}}), catching, 2, 1)
for batch in rollouts.stream(5):
    print("collected", flush=True)
"""


def test_nothing_is_left_of_a_driver_that_is_killed() -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=ROOT,
        env={
            **os.environ,
            **VARIABLES,
            "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    with driver.stdout:
        for _ in range(5):
            assert driver.stdout.readline() == "collected\n"
        started = descendants_of(driver.pid)
        ours = [pid for pid in started if any(part in command_of(pid) for part in OURS)]
        driver.kill()
        driver.wait()
    try:
        # Two actors, two servers, those that watch over them, which Ray kills, and their guards.
        # Ray's own agents may go on.
        assert len(ours) >= 2 + 2 + 2 + 2
        assert settles(lambda: not any(map(is_alive, ours)), 30)
    finally:
        for pid in filter(is_alive, started):
            with contextlib.suppress(ProcessLookupError):  # They also end by themselves.
                os.kill(pid, signal.SIGKILL)


OURS = (b"ray::Worker", b"dm_env_rpc_client.server", b"system/children.py")


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"need the extra: .*\[ray\]"):
        RayRollouts(echo, counting)
