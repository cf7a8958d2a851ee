"""Resets of some rows, and the number of rows, of vector environments at a server."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    EnvironmentsFailedError,
    SpecError,
)
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium.known import cart_poles
from tests.adaptors.sameness import same


def entry_point(num_envs: int = 2) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")


def fixed(seed: int = 3) -> Any:
    """Has a number of rows that nobody can choose."""
    return cart_poles(4)


def test_the_number_of_rows_is_the_servers_if_nobody_says_another() -> None:
    own = fixed()
    with serve(fixed) as server, RemoteVectorEnv(server.address) as envs:
        assert (envs.num_envs, server.world_count) == (4, 1)
        assert same(envs.reset(seed=5), own.reset(seed=5))
        for _ in range(30):
            actions = np.ones(4, np.int64)
            assert same(envs.step(actions), own.step(actions))
    own.close()
    with serve(fixed) as server, serve(entry_point) as other:
        with RemoteVectorEnv([server.address, server.address]) as envs:
            assert (envs.num_envs, server.world_count) == (8, 2)
            assert envs.reset(seed=1)[0].shape == (8, 4)
        with BatchedEnvironment(server.address) as batch:
            assert batch.step({"action": np.ones(4, np.int64)}).observation[
                "observation"
            ].shape == (
                4,
                4,
            )
        with RemoteVectorEnv([server.address, other.address]) as envs:
            assert envs.num_envs == 4 + 2


@pytest.mark.parametrize("count", [1, 3, 8])
def test_another_number_of_rows_than_there_are_is_an_error(count: int) -> None:
    with serve(fixed) as server:
        with pytest.raises(
            EnvironmentsFailedError, match=r"already has 4 rows.*request 4 rows or omit"
        ):
            RemoteVectorEnv(server.address, count)
        assert server.world_count == 0
        with RemoteVectorEnv(server.address, 4) as envs:
            assert (envs.num_envs, server.world_count) == (4, 1)
        with pytest.raises(EnvironmentsFailedError, match=r"'rows.seed'.* already has 4 rows"):
            RemoteVectorEnv(server.address, 4, lambda index: {"seed": index})


def test_one_row_of_a_factory_that_makes_more_by_default() -> None:
    with serve(entry_point) as server, RemoteVectorEnv(server.address, 1) as envs:
        assert (envs.num_envs, server.world_count) == (1, 1)
        assert envs.reset(seed=1)[0].shape == (1, 4)


def deaf(num_envs: int = 2) -> Any:
    return cart_poles(2)


def test_a_factory_that_takes_no_notice_of_the_number_is_found_out() -> None:
    with serve(deaf) as server:
        with pytest.raises(
            SpecError, match=r"requested 3 rows, but the server at .* made a batch of 2"
        ):
            RemoteVectorEnv(server.address, 3)
        assert server.world_count == 0
