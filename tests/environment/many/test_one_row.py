"""A row of a batched world as an environment has the values of that row."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import DmEnvRpcError, SpecError, make
from dm_env_rpc_client.environment.many.one_row import OneRow, num_envs_of
from dm_env_rpc_client.server import Catch, serve
from tests.support.environments import Dice

TRANSPORTS = ["http2"]

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
    def carts(num_envs: int) -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")

    with serve(carts) as server, make(server.address, {"num_envs": 2}) as batch:
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
