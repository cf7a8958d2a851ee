"""Catch, which is shipped, and environments behind a server: their specs, and how they fail."""

from __future__ import annotations

import functools
import logging
from typing import Any

import dm_env
import numpy as np
import pytest
from absl.testing import absltest
from dm_env import test_utils

from dm_env_rpc_client import (
    DmEnvRpcError,
    make,
)
from dm_env_rpc_client.server import Catch, Race, serve
from tests.server.structures.hosted import Structured, array
from tests.support.scripted import playing

FIRST, MID, LAST = dm_env.StepType


def test_a_reward_may_be_an_array_or_have_several_names() -> None:
    pair = np.array([0.5, 1.0])
    made = functools.partial(Structured, array(), {"go": array()})
    with playing(functools.partial(made, reward_spec=array(2), reward=pair)) as env:
        env.reset()
        np.testing.assert_array_equal(env.step({"go": 0.0}).reward, pair)
    own = {"left": 0.0, "right": 2.0}
    specs_of_own = dict.fromkeys(own, array())
    with playing(functools.partial(made, reward_spec=specs_of_own, reward=own)) as env:
        env.reset()
        mid = env.step({"go": 0.0})
        assert (mid.observation["reward"], mid.discount) == (own, 1.0)


def test_default_actions_are_those_of_the_environment() -> None:
    expected = pytest.raises(DmEnvRpcError, match="default action 'padle'")
    with serve(Catch, default_actions={"padle": 1}) as server, expected:
        make(server.address)


class Slip:
    """Breaks its own spec in the first step of a type."""

    def __init__(self, at: int, **size: int):
        super().__init__(**size)
        self._at: int | None = at

    def slip(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if timestep.step_type != self._at:
            return timestep
        self._at = None
        return timestep._replace(observation=dict.fromkeys(timestep.observation, np.zeros(7)))


class SlippingCatch(Slip, Catch):
    """An environment, whose sequences have three steps."""

    def __init__(self, at: int):
        super().__init__(at, rows=3)

    def reset(self) -> dm_env.TimeStep:
        return self.slip(super().reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        return self.slip(super().step(action))


class SlippingRace(Slip, Race):
    """A game, whose sequences have three steps."""

    min_players = 1

    def __init__(self, at: int):
        super().__init__(at, length=2)

    def timestep(self, player: Any) -> dm_env.TimeStep:
        return self.slip(super().timestep(player))


@pytest.mark.parametrize(("factory", "action"), [(SlippingCatch, "paddle"), (SlippingRace, "move")])
@pytest.mark.parametrize(("at", "then"), [(FIRST, FIRST), (MID, LAST), (LAST, MID)])
def test_a_step_whose_observations_cannot_be_sent_confuses_no_sequence(
    caplog: pytest.LogCaptureFixture, factory: Any, action: str, at: int, then: int
) -> None:
    caplog.set_level(logging.CRITICAL)
    with playing(factory, {"at": int(at)}) as env:
        for _ in range(at):
            env.step({action: 1})
        with pytest.raises(DmEnvRpcError, match="violates its own specs"):
            env.step({action: 1})
        if at == LAST:
            # The end was lost with its observations: nothing may pass for its successor.
            with pytest.raises(DmEnvRpcError, match="send a Reset"):
                env.step({action: 1})
            assert env.reset().first()
        kinds = [env.step({action: 1}).step_type for _ in range(4)]
        assert kinds == [dm_env.StepType(number % 3) for number in range(then, then + 4)]


class CatchConformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self) -> Catch:
        return Catch(rows=4, columns=3, seed=0)


def test_the_reward_tells_whether_the_ball_was_caught() -> None:
    env = Catch(rows=6, columns=5, seed=0)
    for _ in range(20):
        board = env.reset().observation["board"]
        ball, paddle = int(np.argmax(board[0])), int(np.argmax(board[-1]))
        move = int(np.sign(ball - paddle)) + 1
        timestep: Any = None
        for _ in range(5):
            timestep = env.step({"paddle": move if paddle != ball else 1})
            paddle += (move - 1) if paddle != ball else 0
        assert timestep.last()
        assert timestep.reward == 1.0
        assert timestep.discount == 0.0


def test_a_seed_repeats_itself() -> None:
    boards = [
        [env.reset().observation["board"] for _ in range(10)]
        for env in (Catch(seed=3), Catch(seed=3))
    ]
    np.testing.assert_array_equal(boards[0], boards[1])


def test_the_paddle_stays_on_the_board() -> None:
    env = Catch(rows=10, columns=3, seed=0)
    env.reset()
    for move, column in ((0, 0), (2, 2)):
        for _ in range(3):
            board = env.step({"paddle": move}).observation["board"]
        assert board[-1, column] == 1


@pytest.mark.parametrize("size", [{"rows": 1}, {"columns": 0}])
def test_a_board_has_a_least_size(size: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 2 rows and 1 column"):
        Catch(**size)
