"""How often an environment waits for a server that is far away."""

from __future__ import annotations

from collections.abc import Callable
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


server = serving({"Catch": Catch, "CartPole": _cart_pole})


Opening = Callable[..., Any]

WAYS: dict[str, tuple[str, Opening, int, Any]] = {
    "make": ("Catch", make, 2, {"paddle": 0}),
    # The server says whether it makes batches; then the world is created and joined at once.
    "a batch": (
        "Catch", lambda address, own: BatchedEnvironment(address, _ENVIRONMENTS, own), 2,
        {"paddle": np.zeros(_ENVIRONMENTS, np.int32)},
    ),
    # The server's greeting, CreateWorld and JoinWorld, if no thread waits for another one.
    "streams": (
        "Catch", lambda address, own: BatchedEnvironment(address, _STREAMS, own, num_batches=0), 3,
        {"paddle": np.zeros(_STREAMS, np.int32)},
    ),
    # Its spaces and its infos are two more requests.
    "Remote-v0": ("CartPole", make_remote, 4, 0),
    # Whether the server makes batches; the world; its spaces; its infos.
    "a vector": (
        "CartPole", lambda address, own: RemoteVectorEnv(address, _ENVIRONMENTS, own), 4,
        np.zeros(_ENVIRONMENTS, np.int64),
    ),
    "a vector on streams": (
        "CartPole", lambda address, own: RemoteVectorEnv(address, _STREAMS, own, num_batches=0), 5,
        np.zeros(_STREAMS, np.int64),
    ),
}  # fmt: skip
"""What is served, what opens it, in how many round trips at least, and an action."""


@pytest.mark.parametrize("way", WAYS)
def test_round_trips(server: Server, way: str) -> None:
    name, opening, least, action = WAYS[way]
    with Distance(server.address, 0.3) as far:
        with far.counted() as made:
            env: Any = opening(far.address, {"environment": name})
        calls: list[Callable[[], object]] = [env.reset, lambda: env.step(action)]
        if way == "make":
            calls.append(lambda: env.unroll({"paddle": np.zeros(_STEPS, np.int32)}))
        for call in (*calls, env.close):
            with far.counted() as counted:
                call()
            assert counted == [1]
    # Those that are opened by several threads may wait for one another.
    assert made[0] == least or ("streams" in way and least < made[0] < _STREAMS)


def test_a_server_that_does_not_join_a_world_without_its_name(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "_to_join", lambda _, request: request.world_name)
    with Distance(server.address, 0.3) as far:
        with far.counted() as made:
            env = BatchedEnvironment(far.address, _ENVIRONMENTS, {"environment": "Catch"})
        assert made == [3]
        assert env.reset().observation["board"].shape == (_ENVIRONMENTS, 10, 5)
        env.close()
    assert (server.agent_count, server.world_count) == (0, 0)
