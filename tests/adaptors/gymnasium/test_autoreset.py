"""Episodes of RemoteVectorEnv, in every autoreset mode, are those of Gymnasium's SyncVectorEnv."""

from __future__ import annotations

import contextlib
import functools

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server
from tests.adaptors.sameness import same
from tests.support.environments import Dice
from tests.support.serving import serving

NUM_ENVS = 5

server = serving(Dice, checks_errors=True)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("copy", [True, False])
def test_every_step_is_that_of_gymnasiums_own(
    server: Server, mode: AutoresetMode, copy: bool
) -> None:
    settings = [{"seed": index} for index in range(NUM_ENVS)]
    singles = [functools.partial(make_remote, server.address, each) for each in settings]
    expected = SyncVectorEnv(singles, autoreset_mode=mode)
    found = RemoteVectorEnv(server.address, NUM_ENVS, settings, autoreset_mode=mode, copy=copy)
    with contextlib.closing(found), contextlib.closing(expected):
        assert found.metadata["autoreset_mode"] is mode
        assert found.single_observation_space == expected.single_observation_space
        assert found.single_action_space == expected.single_action_space
        assert found.observation_space == expected.observation_space
        assert found.action_space == expected.action_space
        assert same(found.reset(seed=7), expected.reset(seed=7))
        expected.action_space.seed(0)
        ends = 0
        for step in range(60):
            actions = expected.action_space.sample()
            mine, theirs = found.step(actions), expected.step(actions)
            assert same(mine, theirs)
            assert mine[0] in found.observation_space
            ended = theirs[2] | theirs[3]
            ends += int(ended.sum())
            if mode is AutoresetMode.DISABLED and ended.any():
                seeds = [None if step % 2 else step + index for index in range(NUM_ENVS)]
                again = found.reset(seed=seeds, options={"reset_mask": ended})
                assert same(again, expected.reset(seed=seeds, options={"reset_mask": ended.copy()}))
        assert ends > 3 * NUM_ENVS
        assert same(found.reset(), expected.reset())
    assert server.world_count == 0
