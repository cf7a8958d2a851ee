"""Several remote environments as one dm_env.Environment."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    DmEnvAdaptor,
    EnvironmentsFailedError,
    SpecError,
)
from dm_env_rpc_client.environment.batched import BatchedEnvironment
from dm_env_rpc_client.environment.many.pool import EnvironmentPool
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.environment.many.conftest import Echoes
from tests.support.environments import Robot
from tests.support.scripted import (
    settles,
)
from tests.support.stopwatch import patience
from tests.travelling.environments.of_dm_env import Timed

NUM_ENVS = 4


def test_environments_take_turns_at_the_addresses() -> None:
    with serve(Catch) as one, serve(Catch) as two:
        with BatchedEnvironment([one.address, two.address], 5, num_batches=0) as env:
            assert (one.world_count, two.world_count) == (3, 2)
            assert env.reset().first().all()
        with BatchedEnvironment([one.address, two.address]) as env:
            assert (one.world_count, two.world_count) == (1, 1)
        assert (one.agent_count, two.agent_count) == (0, 0)


def test_environments_of_one_batch_have_the_same_specs(catch_server: Server) -> None:
    with pytest.raises(SpecError, match=r"environment 2 .* has a different observation_spec"):
        BatchedEnvironment(catch_server.address, 3, lambda index: {"rows": 5 + index // 2})
    assert catch_server.world_count == 0


@pytest.mark.parametrize("copy", [True, False])
def test_arrays_belong_to_the_caller_unless_told_otherwise(echoes: Echoes, copy: bool) -> None:
    env = echoes(2, copy=copy)
    first = env.step({"value": [1, 2]}).observation["value"]
    second = env.step({"value": [3, 4]}).observation["value"]
    assert second.tolist() == [3, 4]
    assert first.tolist() == ([1, 2] if copy else [3, 4])
    assert np.shares_memory(first, second) is not copy
    first[:] = 9


def test_flat_names_are_given_when_asked_for() -> None:
    with serve(Robot) as server, BatchedEnvironment(server.address, 1, nested_tensors=False) as env:
        assert env.observation_spec()["camera.rgb"].shape == (1, 4, 5, 3)
        assert env.reset().observation["camera.rgb"].shape == (1, 4, 5, 3)


def test_observations_of_variable_length_are_objects() -> None:
    numbers = {"numbers": VariableArray((-1,), np.int32)}
    counting = functools.partial(
        Timed, spec=numbers, observe=lambda env: {"numbers": np.arange(env.row + env.steps)}
    )
    with (
        serve(counting) as server,
        BatchedEnvironment(server.address, 2, [{"row": 1}, {"row": 2}]) as env,
    ):
        assert env.observation_spec()["numbers"] == specs.Array((2,), object)
        env.reset()
        found = env.step({"action": [0, 0]}).observation
        assert [row.tolist() for row in found["numbers"]] == [[0, 1], [0, 1, 2]]


def test_a_slow_environment_does_not_keep_the_others(echoes: Echoes) -> None:
    slow = patience(2.0)
    env = echoes(NUM_ENVS, lambda index: {"seconds": slow if index == 1 else 0.0}, num_batches=0)
    started = time.monotonic()
    env.send({"value": np.arange(NUM_ENVS)})
    steps = 0
    while time.monotonic() - started < slow / 2:
        timestep, ids = env.recv(3)
        assert 1 not in ids
        assert timestep.observation["value"].shape == (3,)
        assert timestep.mid().all()
        np.testing.assert_array_equal(timestep.observation["value"], ids + 10 * steps)
        steps += 1
        env.send({"value": ids + 10 * steps}, ids)
    assert steps > 3
    seen: set[int] = set()
    while seen != set(range(NUM_ENVS)):
        timestep, ids = env.recv()
        seen |= set(ids.tolist())
        for index, value in zip(ids, timestep.observation["value"], strict=True):
            assert value == (1 if index == 1 else index + 10 * steps)
    assert time.monotonic() - started >= slow


def test_what_is_under_way_is_received_once(echoes: Echoes) -> None:
    env = echoes(3, num_batches=0)
    with pytest.raises(SpecError, match="min_envs=1: 0 environments have"):
        env.recv()
    env.send({"value": [5, 6]}, [2, 0])
    for action, ids in [({"value": [1]}, [2]), ({"value": [1, 2, 3]}, None)]:
        with pytest.raises(SpecError, match=r"environments \[.*2.*\] have pending steps"):
            env.send(action, ids)
    with pytest.raises(SpecError, match=r"environments \[0, 2\] have pending steps"):
        env.step({"value": [1, 2, 3]})
    with pytest.raises(SpecError, match="min_envs=3: 2 environments have"):
        env.recv(3)
    with pytest.raises(SpecError, match="min_envs=2, max_envs=1: 2"):
        env.recv(2, 1)
    timestep, arrived = env.recv(2)
    values = timestep.observation["value"]
    assert dict(zip(arrived.tolist(), values, strict=True)) == {0: 6, 2: 5}
    env.send({"value": [7]}, np.array([1]))
    # A reset drops what is under way.
    assert env.reset().first().all()
    assert env.step({"value": [1, 2, 3]}).mid().all()


@pytest.mark.parametrize("ids", [[3], [-1], [0, 0], [], [[0]], [0.5], ["a"]])
def test_wrong_indices_are_refused(echo_environment_server: Server, ids: Any) -> None:
    refused = pytest.raises(SpecError, match="distinct indices from 0 to 2")
    with BatchedEnvironment(echo_environment_server.address, 3) as env, refused:
        env.send({"value": [1] * len(ids)}, ids)


def test_rewards_and_discounts_are_arrays_or_nothing_is_opened(catch_server: Server) -> None:
    class Many(DmEnvAdaptor):
        def reward_spec(self) -> Any:
            return {"left": specs.Array((), np.float32), "right": specs.Array((), np.float32)}

    class Other(DmEnvAdaptor):
        made = itertools.count(1)

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self._size = next(self.made)

        def reward_spec(self) -> Any:
            return specs.Array((self._size,), np.float32)

    with pytest.raises(SpecError, match="expected array specs"):
        BatchedEnvironment(catch_server.address, 2, adaptor_class=Many)
    with pytest.raises(SpecError, match=r"environment .* has a different reward_spec from"):
        BatchedEnvironment(catch_server.address, 2, adaptor_class=Other)
    assert catch_server.world_count == 0


def test_rewards_and_discounts_may_be_computed_here(echoes: Echoes) -> None:
    class Computing(DmEnvAdaptor):
        def reward(self, state: int, step_type: dm_env.StepType, observations: Any) -> Any:
            return None if step_type.first() else float(observations["value"]) / 2

        def discount(self, state: int, step_type: dm_env.StepType, observations: Any) -> Any:
            return None if step_type.first() else 0.25

    env = echoes(3, adaptor_class=Computing)
    for values in ([1, 2, 3], [4, 5, 6], [7, 8, 9]):
        timestep = env.step({"value": values})
        assert timestep.reward.tolist() == [value / 2 for value in values]
        assert timestep.discount.tolist() == [0.25] * 3


@pytest.mark.parametrize("which", ["reward", "discount"])
@pytest.mark.parametrize(
    ("own", "text"),
    [
        ("0.5", "expected uint8, got strings"),
        (300, "the value is 300, which uint8 cannot hold"),
        ([1], r"has shape \[1\]; expected \[\]"),
    ],
)
def test_what_is_computed_here_is_not_cast(echoes: Echoes, which: str, own: Any, text: str) -> None:
    def compute(_: DmEnvAdaptor, state: int, step_type: dm_env.StepType, observations: Any) -> Any:
        return None if step_type.first() else own

    def spec(_: DmEnvAdaptor) -> specs.Array:
        return specs.Array((), np.uint8, which)

    counting = type("Counting", (DmEnvAdaptor,), {which: compute, f"{which}_spec": spec})
    env = echoes(2, adaptor_class=counting)
    with pytest.raises(EnvironmentsFailedError, match=f"the {which}: {text}") as caught:
        env.step({"value": [1, 2]})
    assert list(caught.value.failures) == [0, 1]


def test_a_subclass_may_have_steps_of_its_own(echoes: Echoes) -> None:
    def _start_step(self: DmEnvAdaptor, prepared: Any) -> Any:
        return DmEnvAdaptor._start_step(self, prepared)

    def _finish_step(self: DmEnvAdaptor, pending: Any) -> Any:
        timestep = DmEnvAdaptor._finish_step(self, pending)
        return timestep._replace(observation={"value": 2 * timestep.observation["value"]})

    # As it may have been written for an earlier version: without further arguments.
    steps = {"_start_step": _start_step, "_finish_step": _finish_step}
    doubling = type("Doubling", (DmEnvAdaptor,), steps)
    env = echoes(2, adaptor_class=doubling)
    for values in ([1, 2], [3, 4], [5, 6]):
        doubled = env.step({"value": values}).observation["value"].tolist()
        assert doubled == [2 * value for value in values]


def test_the_number_of_rows_is_either_an_argument_or_a_setting() -> None:
    with serve(Catch) as server:
        for arguments in ((3,), (None, {"num_envs": 3})):
            with BatchedEnvironment(server.address, *arguments) as env:
                assert (env.num_envs, server.world_count) == (3, 1)


def test_settings_that_cannot_be_sent_reset_nothing(echoes: Echoes) -> None:
    env = echoes(2)
    env.step({"value": [1, 2]})
    with pytest.raises(SpecError, match=r"environment 1 at .*setting 'length'"):
        env.reset([{"length": 3}, {"length": None}])
    assert env.step({"value": [1, 2]}).mid().all()
    with pytest.raises(EnvironmentsFailedError, match=r"environment 0 at .*'colour'"):
        env.reset({"colour": 3})
    assert env.reset().first().all()


def test_closing_twice_is_closing_once(echo_environment_server: Server) -> None:
    env = BatchedEnvironment(echo_environment_server.address, 2)
    env.reset()
    env.send({"value": [1, 2]})
    env.close()
    env.close()
    assert settles(lambda: echo_environment_server.world_count == 0)


def test_its_repr_says_how_many_there_are_and_where() -> None:
    with serve(Catch) as server, BatchedEnvironment(server.address, 3) as batch:
        assert repr(batch) == (
            f"<BatchedEnvironment of 3 at {server.address}: "
            "actions paddle int32 []; observations board float32 [10, 5]>"
        )


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_waiting_for_slow_steps_polls_rarely(
    echoes: Echoes, timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[int] = []
    poll = EnvironmentPool._poll

    def counted(self: EnvironmentPool, index: int) -> bool:
        polls.append(index)
        return poll(self, index)

    monkeypatch.setattr(EnvironmentPool, "_poll", counted)
    env = echoes(2, {"seconds": 0.3}, num_batches=0, request_timeout=timeout)
    for _ in range(3):
        env.send({"value": [1, 2]})
        env.recv(2)
    assert len(polls) < 100
