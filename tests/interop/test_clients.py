"""Clients of others step batched worlds, and play on a server of several processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor
from dm_env_rpc.v1 import dm_env_rpc_pb2 as reference_pb2
from dm_env_rpc.v1 import tensor_utils

from dm_env_rpc_client import dm_env_rpc_pb2, make
from dm_env_rpc_client.server import Catch, Server, serve
from tests.adaptors.gymnasium.known import cart_pole, cart_poles
from tests.environment.foreign.reference import reference_connection
from tests.peers import cpp_peers
from tests.peers.building import MissingToolchainError
from tests.support.groups import skip

ROWS = 4
STEPS = 60


FACTORIES: dict[str, Callable[..., Any]] = {"catch": Catch, "cart": cart_pole, "carts": cart_poles}


@pytest.fixture(params=FACTORIES)
def served(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serve(FACTORIES[request.param]) as running:
        yield running


def actions(env: Any, step: int) -> dict[str, Any]:
    ((name, spec),) = env.action_spec().items()
    return {name: ((7 * step + np.arange(ROWS)) % int(spec.maximum + 1)).astype(spec.dtype)}


def played(env: Any, **seed: Any) -> list[dm_env.TimeStep]:
    return [
        env.reset(seed) if seed else env.reset(),
        *(env.step(actions(env, step)) for step in range(STEPS)),
    ]


def test_the_reference_steps_a_batch(served: Server, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["served"]
    create: dict[str, Any] = {"num_envs": ROWS}
    if name == "catch":
        create["rows.seed"] = np.arange(ROWS)
    # A vector environment has one seed; others are seeded by the settings of a Reset.
    seed = (
        {} if name == "catch" else {"seed": 5} if name == "carts" else {"rows.seed": np.arange(4)}
    )
    with make(served.address, create) as env:
        expected = played(env, **seed)
    with reference_connection(served.address) as connection:
        theirs, world = reference_adaptor.create_and_join_world(connection, create, {})
        found = [reset_with(theirs, connection, seed)]
        found += [theirs.step(actions(theirs, step)) for step in range(STEPS)]
        theirs.close()
        connection.send(reference_pb2.DestroyWorldRequest(world_name=world))
    ends = 0
    for mine, other in zip(found, expected, strict=True):
        assert mine.step_type == other.step_type
        np.testing.assert_equal(mine.observation, other.observation)
        if other.first():
            # The package's client has neither then; the reference's has what the server sends.
            assert (other.reward, other.discount) == (None, None)
            np.testing.assert_array_equal(mine.discount, np.ones(ROWS))
        else:
            np.testing.assert_equal(mine.reward, other.reward)
            np.testing.assert_equal(mine.discount, other.discount)
        ends += int((mine.observation["step_type"] == dm_env.StepType.LAST).sum())
    assert ends >= ROWS


@pytest.fixture
def cpp_client() -> str:
    try:
        return str(cpp_peers.built() / "batch")
    except MissingToolchainError as missing:
        skip("cpp peer", str(missing))


def test_a_client_in_cpp_steps_a_batch(cpp_client: str) -> None:
    with serve(Catch) as server:
        arguments = [server.address, str(ROWS), str(STEPS), "board"]
        found = subprocess.run(
            [cpp_client, *arguments], stdout=subprocess.PIPE, check=True, timeout=60
        )
        create = {"num_envs": ROWS, "rows.seed": np.arange(ROWS)}
        with make(server.address, create) as env:
            expected = [env.reset(), *(env.step(actions(env, step)) for step in range(1, STEPS))]
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    for theirs, mine in zip(lines, expected, strict=True):
        assert theirs["state"] == dm_env_rpc_pb2.RUNNING
        assert theirs["step_type"] == mine.observation["step_type"].tolist()
        assert theirs["reward"] == (mine.reward if mine.mid() else np.zeros(ROWS)).tolist()
        assert theirs["values"] == mine.observation["board"].ravel().tolist()
    assert sum(line["step_type"].count(2) for line in lines) >= ROWS
    assert any(any(line["reward"]) for line in lines)


def reset_with(env: Any, connection: Any, seed: dict[str, Any]) -> dm_env.TimeStep:
    """A reset; the reference's adaptor takes no settings for it."""
    settings = {name: tensor_utils.pack_tensor(value) for name, value in seed.items()}
    connection.send(reference_pb2.ResetRequest(settings=settings))
    env._last_state = reference_pb2.EnvironmentStateType.INTERRUPTED
    timestep: dm_env.TimeStep = env.step({})
    return timestep
