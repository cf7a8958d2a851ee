"""`unwrap_single`: an array that is no mapping at the server is none at the client."""

from __future__ import annotations

import dm_env
import numpy as np
import pytest
from dm_env import specs

import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment, SpecError
from dm_env_rpc_client.server import Server, serve
from tests.travelling.environments.of_dm_env import ENDLESS, Timed

TRANSPORTS = ["http2"]


_TORQUE = specs.Array((2,), np.float32, "torque")


def bare() -> dm_env.Environment:
    """Observes the action that was taken."""
    return Timed(
        0,
        ENDLESS,
        _TORQUE,
        lambda env: np.zeros(2, np.float32) if env.action is None else env.action,
        specs.BoundedArray((2,), np.float32, -1, 1, "torque"),
    )


ACTION = np.array([0.5, -1], np.float32)


def test_specs_actions_and_observations_are_arrays() -> None:
    with serve(bare) as server, dm_env_rpc_client.make(server.address, unwrap_single=True) as env:
        assert isinstance(env.action_spec(), specs.BoundedArray)
        assert isinstance(env.observation_spec(), specs.Array)
        assert env.reset().observation.tolist() == [0, 0]
        timestep = env.step(ACTION)
        assert timestep.observation.tolist() == ACTION.tolist()
        env.observation_spec().validate(timestep.observation)
        # In the middle of a sequence.
        assert env.reset().first()
        assert env.submit_step(ACTION).result().observation.tolist() == ACTION.tolist()
        assert env.unroll([ACTION] * 3).observation.shape == (3, 2)
        assert env.unroll(np.stack([ACTION] * 3)).observation.shape == (3, 2)
        assert env.step({"action": ACTION}).mid()
        with pytest.raises(SpecError, match=r"action 'action'.*outside its bounds"):
            env.step(2 * ACTION)


def test_the_default_is_a_mapping(catch_server: Server) -> None:
    with serve(bare) as server, dm_env_rpc_client.make(server.address) as env:
        env.reset()
        assert env.step({"action": ACTION}).observation.keys() == {"observation"}
        with pytest.raises(SpecError, match="a mapping of names to values"):
            env.step(ACTION)
    with dm_env_rpc_client.make(catch_server.address, unwrap_single=True) as env:
        env.reset()
        assert env.step({"paddle": 1}).observation.keys() == {"board"}


def test_a_batch_of_arrays_is_one_array(catch_server: Server) -> None:
    with (
        serve(bare) as server,
        BatchedEnvironment(server.address, 3, unwrap_single=True) as envs,
    ):
        actions = np.array([[0.5, -1], [0, 0], [1, 0.25]], np.float32)
        envs.action_spec().validate(actions)
        assert envs.reset().observation.tolist() == [[0, 0]] * 3
        timestep = envs.step(actions)
        assert timestep.observation.tolist() == actions.tolist()
        envs.observation_spec().validate(timestep.observation)
        assert envs.step({"action": actions}).observation.shape == (3, 2)
        envs.send(actions, [2, 0, 1])
        timestep, ids = envs.recv(3)
        assert timestep.observation.tolist() == [actions[[2, 0, 1].index(i)].tolist() for i in ids]
        with pytest.raises(SpecError, match=r"action 'action': expected 3 rows"):
            envs.send(actions[1:])
    with BatchedEnvironment(catch_server.address, 2, unwrap_single=True) as envs:
        assert envs.reset().observation["board"].shape == (2, 10, 5)
        assert envs.action_spec().keys() == {"paddle"}
        with pytest.raises(SpecError, match="a mapping of names to arrays"):
            envs.step(np.ones(2, np.int32))


async def test_asyncio() -> None:
    with serve(bare) as server:
        async with await dm_env_rpc_client.make_async(server.address, unwrap_single=True) as env:
            assert (await env.reset()).observation.tolist() == [0, 0]
            assert (await env.step(ACTION)).observation.tolist() == ACTION.tolist()
