"""What a batch of trajectories is, in one process. Rollouts with Ray are compared with these."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    ConnectionClosedError,
    EnvironmentsFailedError,
    SpecError,
    make,
)
from dm_env_rpc_client.distributed import LocalRollouts, PolicyStep, RemoteEnvironments
from dm_env_rpc_client.server import Catch, Server, serve
from tests.adaptors.sameness import same
from tests.distributed.actors import (
    Breaking,
    Random,
    Remembering,
    catch,
    catching,
    counting,
    echo,
)
from tests.support.environments import Constant, Echo, Robot
from tests.support.serving import serving

FIRST, MID, LAST = map(int, dm_env.StepType)


def test_their_repr_says_how_many_there_are_and_what_they_take() -> None:
    with LocalRollouts(echo, counting, 2, 3) as rollouts:
        text = "actions value int64 []; observations value int64 []>"
        assert repr(rollouts) == f"<LocalRollouts of 6, in 2 actors: {text}"
    assert repr(rollouts) == f"<LocalRollouts of 6, closed: {text}"


def test_each_action_was_chosen_at_its_timestep_and_is_answered_by_the_next() -> None:
    with LocalRollouts(echo, counting, 2, 3, seed=1) as rollouts:
        steps, actions, extras, env_ids, restarts, start, version = rollouts.collect(20)
    assert steps.step_type.shape == steps.reward.shape == steps.discount.shape == (21, 6)
    assert actions["value"].shape == extras["pid"].shape == (20, 6)
    assert (env_ids == np.arange(6)).all()
    assert (restarts.tolist(), start.tolist(), version) == ([0] * 6, [0] * 6, 0)
    seen = steps.observation["value"]
    for env in range(6):
        for time in range(20):
            before, after = steps.step_type[time, env], steps.step_type[time + 1, env]
            if before == LAST:
                assert (after, seen[time + 1, env]) == (FIRST, -1)
            else:
                assert after in (MID, LAST)
                assert seen[time + 1, env] == actions["value"][time, env]
        # An Echo of length n is FIRST every n + 1 TimeSteps.
        assert np.flatnonzero(steps.step_type[:, env] == FIRST).tolist() == list(
            range(0, 21, 3 + env + 1)
        )
    is_first = steps.step_type == FIRST
    assert (steps.reward == np.where(is_first, 0.0, 1.0)).all()
    assert (steps.discount == 1.0).all()
    assert len(np.unique(actions["value"])) == 120


@pytest.mark.parametrize("layout", [(1, 12), (3, 4), (12, 1)])
def test_trajectories_do_not_depend_on_the_layout(layout: tuple[int, int]) -> None:
    with LocalRollouts(catch, catching, 4, 3, seed=5) as expected:
        with LocalRollouts(catch, catching, *layout, seed=5) as found:
            assert found.num_envs == expected.num_envs == 12
            for _ in range(3):
                assert same(found.collect(10), expected.collect(10))
        with LocalRollouts(catch, catching, *layout, seed=6) as others:
            assert (
                others.collect(10).actions["paddle"] != expected.collect(10).actions["paddle"]
            ).any()


server = serving({"catch": Catch, "echo": Echo})


def test_remote_environments_are_as_local_ones(server: Server) -> None:
    def remote(index: int) -> dm_env.Environment:
        return make(server.address, {"environment": "catch", "rows": 6, "seed": index})

    def either(index: int) -> dm_env.Environment:
        return remote(index) if index % 2 else catch(index)

    with LocalRollouts(catch, catching, 2, 3, seed=1) as local:
        expected = local.collect(30)
        assert (expected.timesteps.step_type == LAST).any()

    def settings(index: int) -> dict[str, Any]:
        return {"environment": "catch", "rows": 6, "seed": index}

    batches = [RemoteEnvironments(server.address, settings, num_batches=n) for n in (None, 0, 2)]
    makers: list[Callable[[int], dm_env.Environment] | RemoteEnvironments]
    # Steps to remote environments are begun together, the others are taken between.
    makers = [remote, either, *batches]
    for make_env in makers:
        with LocalRollouts(make_env, catching, 2, 3, seed=1) as rollouts:
            found = rollouts.collect(30)
        reward = found.timesteps.reward.astype(expected.timesteps.reward.dtype)
        assert same(found._replace(timesteps=found.timesteps._replace(reward=reward)), expected)
    assert server.world_count == 0


def test_environments_of_an_actor_are_one_world_where_the_server_makes_batches() -> None:
    with serve(Echo) as first, serve(Echo) as second:
        remote = RemoteEnvironments([first.address, second.address], {"length": 4})
        with LocalRollouts(remote, counting, 2, 6, seed=1) as rollouts:
            assert (first.stats().worlds, second.stats().worlds) == (2, 2)
            assert rollouts.observation_spec() == Echo().observation_spec()
            assert rollouts.action_spec() == Echo().action_spec()
            rollouts.collect(6)
            steps = rollouts.collect(20).timesteps
            assert (steps.step_type == FIRST).sum() == 12 * 4
        # One environment is at one server, by its index.
        with LocalRollouts(remote, counting, 2, 1) as rollouts:
            assert (first.stats().worlds, second.stats().worlds) == (1, 1)
            rollouts.collect(2)


def speaking(timestep: dm_env.TimeStep, weights: Any, random: Random) -> Any:
    """Says to a Robot what it has heard, and more."""
    speech = np.array([f"{heard[1]}ab" for heard in timestep.observation["heard"]], object)
    arm = {"torque": np.ones((2, 3), np.float32), "grip": np.zeros(2, bool)}
    return {"arm": arm, "mode": np.zeros(2, int), "speech": speech}


def test_nested_observations_and_strings_of_batches() -> None:
    def make_env(index: int) -> dm_env.Environment:
        return make(robots.address)

    with serve(Robot) as robots:
        with LocalRollouts(make_env, speaking, 2, 2) as rollouts:
            expected = rollouts.collect(9)
        for num_batches in (None, 0):
            remote = RemoteEnvironments(robots.address, num_batches=num_batches)
            with LocalRollouts(remote, speaking, 2, 2) as rollouts:
                assert same(rollouts.collect(9), expected)


@pytest.mark.parametrize("num_batches", [None, 0])
def test_batches_that_fail_name_their_environments_and_begin_again(
    num_batches: int | None, tmp_path: Path
) -> None:
    (tmp_path / "once").touch()
    with serve(Breaking) as own:
        remote = RemoteEnvironments(own.address, {"folder": str(tmp_path)}, num_batches=num_batches)
        with LocalRollouts(remote, counting, 2, 2) as rollouts:
            with pytest.raises(EnvironmentsFailedError, match="the engine is gone") as caught:
                rollouts.collect(6)
            assert len(caught.value.failures) == 1
            assert (rollouts.collect(3).timesteps.step_type[0] == FIRST).all()

        def wrong(timestep: dm_env.TimeStep, weights: Any, random: Random) -> Any:
            return {"value": np.array([1, 1.5])}

        with (
            LocalRollouts(remote, wrong, 2, 2) as rollouts,
            pytest.raises(
                SpecError, match=r"actor 0, whose first environment is 0: .*action 'value'"
            ),
        ):
            rollouts.collect(2)
    with pytest.raises(EnvironmentsFailedError, match="environment 0 at actor 0 failed") as caught:
        LocalRollouts(RemoteEnvironments(own.address, timeout=0.2), counting, 2, 2)
    assert list(caught.value.failures) == [0, 1]


def test_a_policy_gets_the_weights_of_now() -> None:
    def policy(timestep: dm_env.TimeStep, weights: Any, random: Random) -> Any:
        return {"value": np.full(len(random), weights)}

    with LocalRollouts(echo, policy, 2, 2, weights=7) as rollouts:
        batch = rollouts.collect(3)
        assert (batch.version, np.unique(batch.actions["value"]).tolist()) == (0, [7])
        rollouts.update(8)
        assert rollouts.version == 1
        batch = rollouts.collect(3)
        assert (batch.version, np.unique(batch.actions["value"]).tolist()) == (1, [8])


def test_each_actor_has_a_policy_with_a_state_of_its_own() -> None:
    with LocalRollouts(echo, Remembering(), 3, 2) as rollouts:
        counts = rollouts.collect(12).actions["value"]
    for env in range(6):
        assert counts[:, env].tolist() == [time % (4 + env) for time in range(12)]


def test_stream_yields_batches_of_one_actor_each() -> None:
    with (
        LocalRollouts(catch, catching, 2, 2, seed=1) as rollouts,
        LocalRollouts(catch, catching, 2, 2, seed=1) as others,
    ):
        for batch in itertools.islice(others.stream(5), 4):
            assert batch.timesteps.step_type.shape == (6, 2)
            if batch.env_ids[0] == 0:
                expected = rollouts.collect(5)
            columns = expected.timesteps.step_type[:, batch.env_ids]
            np.testing.assert_array_equal(batch.timesteps.step_type, columns)


def test_what_a_policy_does_with_its_arrays_changes_nothing() -> None:
    kept = np.zeros(2, np.int64)

    def rude(timestep: dm_env.TimeStep, weights: Any, random: Random) -> Any:
        nonlocal kept
        timestep.observation["value"][:] = 1000
        timestep.step_type[:] = LAST
        kept += 1
        return {"value": kept}

    with LocalRollouts(echo, rude, 1, 2) as rollouts:
        batch = rollouts.collect(3)
    assert batch.actions["value"].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert batch.timesteps.observation["value"].tolist() == [[-1, -1], [1, 1], [2, 2], [3, 3]]
    batch.timesteps.observation["value"][:] = 5  # It is the caller's.


WRONG_POLICIES: list[tuple[Callable[..., Any], str]] = [
    (
        lambda timestep, weights, random: {"value": np.zeros(3)},
        r"actions 'value' .*\(3,\).* length 2",
    ),
    (lambda timestep, weights, random: {"value": 1}, r"actions 'value' .*\(\).* length 2"),
    (
        lambda timestep, weights, random: PolicyStep({"value": np.zeros(2)}, np.zeros(1)),
        r"extras .*\(1,\).* length 2",
    ),
]


@pytest.mark.parametrize(("policy", "message"), WRONG_POLICIES)
def test_a_policy_returns_a_row_for_each_environment(
    policy: Callable[..., Any], message: str
) -> None:
    with LocalRollouts(echo, policy, 1, 2) as rollouts, pytest.raises(SpecError, match=message):
        rollouts.collect(2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"value": np.zeros(3, int)}, r"environment 0: observation 'value': has shape \[3\]"),
        ({"value": np.ma.array([0, 1], mask=[False, True])}, "'value': has masked elements"),
        ({"valve": np.zeros(2, int)}, "environment 0: observation 'value' is missing"),
    ],
)
def test_timesteps_conform_to_the_specs(value: dict[str, Any], message: str) -> None:
    """By the same code as those of a server, which `tests/mistakes` has a table for."""
    spec = specs.Array((2,), np.int64)
    made = functools.partial(Constant, {"value": spec}, value, {"value": specs.Array((), np.int64)})
    with (
        LocalRollouts(lambda index: made(), counting) as rollouts,
        pytest.raises(SpecError, match=message),
    ):
        rollouts.collect(2)


def test_all_environments_have_the_same_specs() -> None:
    with pytest.raises(SpecError, match=r"2 has a different observation_spec .*'board'"):
        LocalRollouts(lambda index: Catch(rows=4 + index // 2), catching, 2, 2)
    with LocalRollouts(catch, catching) as rollouts:
        expected = Catch(rows=6)
        assert rollouts.observation_spec() == expected.observation_spec()
        assert rollouts.action_spec() == expected.action_spec()
        assert rollouts.reward_spec() == expected.reward_spec()
        assert rollouts.discount_spec() == expected.discount_spec()


class Closing(Echo):
    """Counts how many are open."""

    open_ones = 0

    def __init__(self) -> None:
        super().__init__()
        Closing.open_ones += 1

    def close(self) -> None:
        Closing.open_ones -= 1
        raise RuntimeError("even so")


def test_environments_are_closed_also_if_one_cannot_be_made() -> None:
    with LocalRollouts(lambda index: Closing(), counting, 2, 2) as rollouts:
        assert Closing.open_ones == 4
    assert Closing.open_ones == 0
    with pytest.raises(ConnectionClosedError):
        rollouts.collect(1)
    with pytest.raises(ConnectionClosedError):
        rollouts.stream(1)

    def make_env(index: int) -> dm_env.Environment:
        if index == 3:
            raise OSError("no room")
        return Closing()

    with pytest.raises(EnvironmentsFailedError, match="environment 3 at actor 1 failed: no room"):
        LocalRollouts(make_env, counting, 2, 2)
    assert Closing.open_ones == 0


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, True, 1), (1, 1, 1.5)])
def test_numbers_are_positive(numbers: Any) -> None:
    num_actors, envs_per_actor, num_steps = numbers
    with (
        pytest.raises(SpecError, match="must be an integer of at least 1"),
        LocalRollouts(echo, counting, num_actors, envs_per_actor) as rollouts,
    ):
        rollouts.collect(num_steps)
