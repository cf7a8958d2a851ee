"""Environments of a batch that fail, are killed, late or interrupted, and the others."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcError,
    EnvironmentsFailedError,
    SpecError,
)
from dm_env_rpc_client.environment.batched import BatchedEnvironment
from dm_env_rpc_client.server import Server, serve
from tests.environment.many.conftest import Echoes
from tests.support.environments import Echo
from tests.support.scripted import (
    SignalledServer,
    served_echo,
    settles,
)
from tests.support.serving import serving
from tests.support.stopwatch import patience

TRANSPORTS = ["http2"]


class Fragile(Echo):
    """Raises when it is told to do a negative number."""

    def __init__(self, name: int = 0, length: int = 1_000_000_000):
        super().__init__(length)
        self._name = name

    def step(self, action: Any) -> dm_env.TimeStep:
        if action["value"] < 0:
            raise ValueError(f"environment number {self._name} cannot do that")
        return super().step(action)


fragile = serving(Fragile, scope="function")


def test_an_environment_that_refuses_a_step_is_named_and_the_others_go_on(fragile: Server) -> None:
    with BatchedEnvironment(fragile.address, 4, lambda index: {"name": index}) as env:
        env.reset()
        with pytest.raises(EnvironmentsFailedError) as caught:
            env.step({"value": [1, -1, 2, -2]})
        error = caught.value
        assert list(error.failures) == [1, 3]
        assert all(isinstance(failure, DmEnvRpcError) for failure in error.failures.values())
        assert error.__cause__ is error.failures[1]
        assert str(error).startswith(f"environment 1 at {fragile.address} failed: the server")
        assert "environment number 1 cannot do that" in str(error)
        assert "and 1 more: 3" in str(error)
        # The others have taken that step and no other; so have these, when they can.
        assert env.step({"value": [3, 4, 5, 6]}).observation["value"].tolist() == [3, 4, 5, 6]
        env.send({"value": [1, -1, 2, 3]})
        seen: list[int] = []
        failed: list[int] = []
        while len(seen) + len(failed) < 4:
            try:
                seen += env.recv()[1].tolist()
            except EnvironmentsFailedError as failures:
                failed += failures.failures
        assert (sorted(seen), failed) == ([0, 2, 3], [1])
        assert env.reset().first().all()
    assert fragile.world_count == 0


Halved = tuple[SignalledServer, BatchedEnvironment]


@pytest.fixture
def halved() -> Iterator[Halved]:
    """A server that may be killed, and four environments, of which it has 1 and 3."""
    with served_echo() as victim, serve(Echo) as survivor:
        with BatchedEnvironment([survivor.address, victim.address], 4) as env:
            env.reset()
            env.step({"value": [1, 2, 3, 4]})
            yield victim, env
        assert settles(lambda: survivor.world_count == 0)


def test_a_killed_server_fails_its_own_environments_only(halved: Halved) -> None:
    victim, env = halved
    victim.signal(signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EnvironmentsFailedError, match="environment 1 at") as caught:
            env.step({"value": [5, 6, 7, 8]})
        assert list(caught.value.failures) == [1, 3]
        assert set(caught.value.addresses.values()) == {victim.address}
        for failure in caught.value.failures.values():
            assert isinstance(failure, ConnectionLostError)
    env.send({"value": [9, 10]}, [2, 0])
    assert sorted(env.recv(2)[0].observation["value"]) == [9, 10]
    with pytest.raises(EnvironmentsFailedError):
        env.send({"value": [1, 2, 3, 4]})
    assert sorted(env.recv(2)[1].tolist()) == [0, 2]


def test_those_of_a_killed_server_cannot_be_reset_and_the_others_can(halved: Halved) -> None:
    victim, env = halved
    env.send({"value": [5, 6, 7, 8]})
    victim.signal(signal.SIGKILL)
    for settings in (None, {"length": 2}):
        with pytest.raises(EnvironmentsFailedError) as caught:
            env.reset(settings)
        assert list(caught.value.failures) == [1, 3]
    env.send({"value": [7, 8]}, [0, 2])
    assert env.recv(2)[0].first().all()


def test_a_server_that_is_killed_while_it_is_waited_for_fails_then(halved: Halved) -> None:
    victim, env = halved
    victim.signal(signal.SIGSTOP)
    env.send({"value": [1, 2, 3, 4]})
    assert env.recv(2)[1].tolist() == [0, 2]
    victim.signal(signal.SIGKILL)
    with pytest.raises(EnvironmentsFailedError, match="environment 1 at"):
        env.recv(1)
    with pytest.raises(SpecError, match="min_envs=1: 0 environments have"):
        env.recv(1)


def test_one_that_is_late_is_noticed_while_others_answer(echoes: Echoes) -> None:
    timeout = patience(0.5)
    late = 6 * timeout
    env = echoes(
        3,
        lambda index: {"seconds": late if index == 1 else 0.0},
        request_timeout=timeout,
        num_batches=0,
    )
    env.send({"value": [0, 1, 2]})
    deadline = time.monotonic() + 20.0

    def go_on() -> None:
        while time.monotonic() < deadline:
            _, ids = env.recv()
            assert 1 not in ids
            env.send({"value": ids}, ids)

    with pytest.raises(EnvironmentsFailedError) as caught:
        go_on()
    assert list(caught.value.failures) == [1]
    assert isinstance(caught.value.failures[1], DeadlineExceededError)
    timestep, ids = env.recv()
    np.testing.assert_array_equal(timestep.observation["value"], ids)


def test_nothing_is_left_where_one_cannot_be_opened(fragile: Server) -> None:
    def settings(index: int) -> dict[str, Any]:
        return {"name": index} if index != 5 else {"colour": 1}

    with pytest.raises(EnvironmentsFailedError, match=r"environment 5 at .*'colour'"):
        BatchedEnvironment(fragile.address, 8, settings)
    assert settles(lambda: (fragile.world_count, fragile.agent_count) == (0, 0))
    with pytest.raises(EnvironmentsFailedError, match=r"environment \d at localhost:1 failed"):
        BatchedEnvironment("localhost:1", 3, timeout=0.5)
