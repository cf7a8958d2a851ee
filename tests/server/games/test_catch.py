"""Catch, the environment that is shipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from absl.testing import absltest
from dm_env import test_utils

from dm_env_rpc_client.server import Catch


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
