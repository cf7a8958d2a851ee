"""ResetWorld and properties of the one-file server, as of `serve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    connect,
    create_world,
    destroy_world,
    dm_env_rpc_pb2,
    join_world,
    reset_world,
)
from dm_env_rpc_client.errors import DmEnvRpcError
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file
from dm_env_rpc_client.server import serve
from tests.support.scripted import settles


class Sized(dm_env.Environment):
    """Observes how many steps it has taken, in as many elements as a setting says."""

    def __init__(self, size: int = 1):
        self._size = size

    def reset(self) -> dm_env.TimeStep:
        self._count = 0
        return dm_env.restart(np.zeros(self._size, np.int64))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._count += 1
        return dm_env.transition(1.0, np.full(self._size, self._count))

    def observation_spec(self) -> Any:
        return specs.Array((self._size,), np.int64, "count")

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2, name="a")


@pytest.fixture(params=[serve, one_file.serve], ids=["serve", "one file"])
def host(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return lambda kind: request.param(kind, "localhost:0")


def test_a_world_without_an_agent_takes_settings_that_change_its_specs(host: Any) -> None:
    with host(Sized) as server, connect(server.address) as connection:
        name = create_world(connection, {"size": 2})
        reset_world(connection, name, {"size": 3})
        with join_world(connection, name) as env:
            (spec,) = env.observation_spec().values()
            assert spec.shape == (3,)
            assert env.reset().first()
            # Settings of another connection may not change the specs of a joined agent.
            with connect(server.address) as other, pytest.raises(DmEnvRpcError, match="own Reset"):
                reset_world(other, name, {"size": 4})
            assert env.step({"action": 1}).mid()
        destroy_world(connection, name)


def test_a_reset_of_the_agent_itself_ends_an_earlier_one_of_another(host: Any) -> None:
    with host(Sized) as server, connect(server.address) as connection:
        name = create_world(connection, {})
        with connect(server.address) as other, join_world(connection, name) as env:
            env.reset()
            assert env.step({"action": 1}).mid()
            # Pending, as the agent is in a sequence: it is told by its next step, or by its own
            # reset of the world.
            asked = other.submit(dm_env_rpc_pb2.ResetWorldRequest(world_name=name))
            if isinstance(server, one_file.Server):
                assert settles(lambda: server.worlds[name].is_interrupted)
            reset_world(connection, name)
            asked.result(20)
            timestep = env.step({"action": 1})
            assert timestep.first()
            (count,) = timestep.observation.values()
            assert count.tolist() == [0]
            assert env.step({"action": 1}).mid()
        destroy_world(connection, name)
