"""How often an environment waits for a server that is far away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import BatchedEnvironment, make
from dm_env_rpc_client.adaptors.gymnasium import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Catch, Server
from dm_env_rpc_client.server.session import Session
from tests.environment.distance import Distance
from tests.support.serving import serving

TRANSPORTS = ["http2"]
"""What grpcio does before a call is its own."""

_STEPS = 200
_ENVIRONMENTS = 64


_STREAMS = 8


def _cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


server = serving(Catch)
gymnasium_server = serving(_cart_pole)


@pytest.fixture
def far(server: Server) -> Iterator[Distance]:
    with Distance(server.address, 0.3) as distance:
        yield distance


@pytest.fixture
def far_gymnasium(gymnasium_server: Server) -> Iterator[Distance]:
    with Distance(gymnasium_server.address, 0.3) as distance:
        yield distance


def trips(far: Distance, *calls: Callable[[], object]) -> list[int]:
    """How many round trips each call takes."""
    found = []
    for call in calls:
        with far.counted() as counted:
            call()
        found += counted
    return found


def test_an_environment(far: Distance) -> None:
    with far.counted() as making:
        env = make(far.address)
    actions = {"paddle": np.zeros(_STEPS, np.int32)}
    calls = (env.reset, lambda: env.step({"paddle": 0}), lambda: env.unroll(actions), env.close)
    assert (making, trips(far, *calls)) == ([2], [1, 1, 1, 1])


def test_sixty_four_environments_in_a_batch(far: Distance) -> None:
    with far.counted() as making:
        env = BatchedEnvironment(far.address, _ENVIRONMENTS)
    action = {"paddle": np.zeros(_ENVIRONMENTS, np.int32)}
    # The server says whether it makes batches; then the world is created and joined at once.
    counted = trips(far, env.reset, lambda: env.step(action), env.close)
    assert (making, counted) == ([2], [1, 1, 1])


def test_a_server_that_does_not_join_a_world_without_its_name(
    far: Distance, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "_to_join", lambda _, request: request.world_name)
    with far.counted() as making:
        env = BatchedEnvironment(far.address, _ENVIRONMENTS)
    assert making == [3]
    assert env.reset().observation["board"].shape == (_ENVIRONMENTS, 10, 5)
    env.close()
    assert (server.agent_count, server.world_count) == (0, 0)


def test_environments_on_streams(far: Distance) -> None:
    with far.counted() as making:
        env = BatchedEnvironment(far.address, _STREAMS, num_batches=0)
    action = {"paddle": np.zeros(_STREAMS, np.int32)}
    counted = trips(far, env.reset, lambda: env.step(action), env.close)
    # The server's greeting, CreateWorld and JoinWorld, if no thread waits for another one.
    assert 3 <= making[0] < _STREAMS
    assert counted == [1, 1, 1]


def test_a_gymnasium_environment(far_gymnasium: Distance) -> None:
    # Its spaces and its infos are two more requests.
    with far_gymnasium.counted() as making:
        env: Any = make_remote(far_gymnasium.address)
    counted = trips(far_gymnasium, env.reset, lambda: env.step(0), env.close)
    assert (making, counted) == ([4], [1, 1, 1])


@pytest.mark.parametrize(("count", "num_batches"), [(_ENVIRONMENTS, None), (_STREAMS, 0)])
def test_a_vector_environment(far_gymnasium: Distance, count: int, num_batches: int | None) -> None:
    with far_gymnasium.counted() as making:
        envs = RemoteVectorEnv(far_gymnasium.address, count, num_batches=num_batches)
    with contextlib.closing(envs):
        actions = np.zeros(count, np.int64)
        counted = trips(far_gymnasium, envs.reset, lambda: envs.step(actions))
    # Whether the server makes batches; the world; its spaces; its infos.
    assert making == [4] if num_batches is None else 5 <= making[0] < _STREAMS
    assert counted == [1, 1]
