"""One row of a batch, and rows of which one fails in the step that ends another one."""

from __future__ import annotations

import itertools
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import DmEnvRpcError, EnvironmentsFailedError, SpecError, make
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.environment.many.batch_worlds import BatchWorlds
from dm_env_rpc_client.environment.many.one_row import OneRow, num_envs_of
from dm_env_rpc_client.server import Catch, serve
from tests.adaptors.gymnasium.known import entry_point
from tests.support.environments import Dice
from tests.support.interrupts import Interrupt

TRANSPORTS = ["http2"]

SAME = AutoresetMode.SAME_STEP

LENGTH = 2

PLACES: dict[str, dict[str, Any]] = {
    "batch": {},
    "streams": {"num_batches": 0},
    "two batches": {"num_batches": 2},
}


class Adding(dm_env.Environment):
    """Observes the sum of its actions; -1 raises; an episode has as many steps as the setting says.

    Args:
      length: that number.
    """

    def __init__(self, length: int = 99):
        self._length = length

    def reset(self) -> dm_env.TimeStep:
        self._sum = self._steps = 0
        return dm_env.restart(np.array([0.0]))

    def step(self, action: Any) -> dm_env.TimeStep:
        if action == -1:
            raise OSError("it does not go back")
        self._sum += int(action)
        self._steps += 1
        observation = np.array([float(self._sum)])
        if self._steps == self._length:
            return dm_env.termination(float(action), observation)
        return dm_env.transition(float(action), observation)

    def action_spec(self) -> specs.Array:
        return specs.BoundedArray((), np.int64, -1, 9, "action")

    def observation_spec(self) -> specs.Array:
        return specs.Array((1,), np.float64, "sum")


def received(envs: RemoteVectorEnv, actions: Any) -> Any:
    """Takes a step by `send` and `recv`: the observations, and whether rows have a last one."""
    envs.send(actions)
    rows: dict[int, Any] = {}
    failures: dict[int, Exception] = {}
    has_final = False
    while len(rows) + len(failures) < len(actions):
        try:
            observations, *_, infos, ids = envs.recv()
        except EnvironmentsFailedError as error:
            failures.update(error.failures)
        else:
            has_final |= "final_obs" in infos
            rows.update(zip(ids.tolist(), observations, strict=True))
    if failures:
        raise EnvironmentsFailedError(failures, dict.fromkeys(failures, ""))
    return np.stack([rows[row] for row in sorted(rows)]), has_final


@pytest.mark.parametrize("asynchronous", [False, True], ids=["step", "send"])
@pytest.mark.parametrize("place", PLACES)
def test_rows_may_fail_and_end_in_turns(place: str, asynchronous: bool) -> None:
    """No action is lost that follows a step in which another row failed, or ended."""
    with (
        serve(Adding) as server,
        RemoteVectorEnv(
            server.address, 3, {"length": LENGTH}, autoreset_mode=SAME, **PLACES[place]
        ) as envs,
    ):
        envs.reset()
        sums = np.zeros(3)
        steps = np.zeros(3, int)
        random = np.random.default_rng(3)
        failed = 0
        for _ in range(60):
            actions = random.integers(0, 5, 3)
            actions[random.random(3) < 0.2] = -1
            fine = actions != -1
            sums[fine] += actions[fine]
            steps[fine] += 1
            is_last = fine & (steps == LENGTH)
            sums[is_last] = steps[is_last] = 0
            if not fine.all():
                failed += 1
                with pytest.raises(EnvironmentsFailedError) as caught:
                    received(envs, actions) if asynchronous else envs.step(actions)
                assert sorted(caught.value.failures) == np.flatnonzero(~fine).tolist()
                continue
            if asynchronous:
                observations, has_final = received(envs, actions)
            else:
                observations, rewards, terminated, _, infos = envs.step(actions)
                has_final = "final_obs" in infos
                assert rewards.tolist() == actions.tolist()
                assert terminated.tolist() == is_last.tolist()
            assert observations[:, 0].tolist() == sums.tolist()
            assert has_final == bool(is_last.any())
        assert 10 < failed < 50


@pytest.mark.parametrize("place", ["batch", "two batches"])
def test_an_interrupt_while_episodes_begin_loses_no_last_step_without_an_error(place: str) -> None:
    """In front of any line: the step that has ended the episodes was taken, and nobody got it."""
    line = 0
    with serve(Adding) as server:
        while True:
            line += 1
            with RemoteVectorEnv(
                server.address, 2, {"length": LENGTH}, autoreset_mode=SAME, **PLACES[place]
            ) as envs:
                envs.reset()
                envs.step(np.array([1, 1]))
                with Interrupt(line, BatchWorlds._put, BatchWorlds._begin) as interrupt:
                    try:
                        envs.step(np.array([1, 1]))
                    except KeyboardInterrupt:
                        pass
                    else:
                        break
                assert interrupt.left == 0
                # Rows that have arrived can be received, which is what a SpecError asks for.
                with pytest.raises((EnvironmentsFailedError, SpecError)):
                    envs.step(np.array([1, 1]))
    assert line > 15


ROWS = {"num_envs": 3, "rows.seed": [1, 2, 3]}


def test_it_is_as_the_environment_alone() -> None:
    rows = {**ROWS, "rows.name": ["a", "b", "c"]}
    with (
        serve(Dice) as server,
        make(server.address, rows) as batch,
        make(server.address, {"seed": 2, "name": "b"}) as alone,
    ):
        one = OneRow(batch, 1)
        for kind in ("action_spec", "observation_spec", "reward_spec"):
            assert getattr(one, kind)() == getattr(alone, kind)()
        action = {"bet": 3, "hand": {"push": np.array([0, 1], np.float32)}, "word": "go"}
        found, expected = one.reset(), alone.reset()
        for _ in range(30):
            assert found[:3] == expected[:3]
            np.testing.assert_equal(found.observation, expected.observation)
            found, expected = one.step(action), alone.step(action)


def test_another_row_is_shown_and_the_others_go_on() -> None:
    with serve(Catch) as server, make(server.address, ROWS) as batch:
        one = OneRow(batch)
        assert one.shown() is None
        one.reset()
        one.step({"paddle": 1})
        one.row = 2
        shown = one.shown()
        assert shown is not None
        assert shown.mid()
        # The row begins anew; the first one does not.
        assert one.reset().first()
        one.row = 0
        assert one.step({"paddle": 1}).mid()
        for row in (-1, 3):
            with pytest.raises(
                SpecError, match=f"there is no row {row}: the batch has rows 0 to 2"
            ):
                one.row = row


def test_a_vector_environment_that_takes_no_mask_begins_all_rows() -> None:
    with serve(entry_point) as server, make(server.address, {"num_envs": 2}) as batch:
        one = OneRow(batch, 1)
        assert one.reset().first()
        kinds = []
        for _ in range(40):
            timestep = one.step({"action": 0})
            kinds.append(int(timestep.step_type))
        assert kinds.count(2) >= 2
        assert all(after == 0 for before, after in itertools.pairwise(kinds) if before == 2)


def test_what_a_row_raises_is_told_for_that_row() -> None:
    rows = {**ROWS, "rows.fails_at": [0, 1, 0]}
    action = {"bet": 3, "hand": {"push": np.zeros(2, np.float32)}, "word": "go"}
    with serve(Dice) as server, make(server.address, rows) as batch:
        one = OneRow(batch, 1)
        one.reset()
        with pytest.raises(DmEnvRpcError, match="row 1 failed: ValueError:  has lost the dice"):
            one.step(action)
        one.row = 0
        one.reset()
        one.step(action)


def test_worlds_without_rows_are_told_apart() -> None:
    with serve(Catch) as server, make(server.address) as env:
        assert num_envs_of(env) is None
        assert num_envs_of(Catch()) is None
        with pytest.raises(SpecError, match="is not batched"):
            OneRow(env)
        with make(server.address, ROWS) as batch:
            assert num_envs_of(batch) == 3
