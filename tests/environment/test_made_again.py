"""Copies and pickles of environments: a new world each, with the same arguments."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvAdaptor,
    SpecError,
    connect,
    create_and_join_world,
    make,
)
from dm_env_rpc_client.server import Catch, Server, serve
from tests.support.both_transports import forced, obey

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),
    "cloudpickle": lambda env: cloudpickle.loads(cloudpickle.dumps(env)),
}


class Doubled(DmEnvAdaptor):
    """Doubles rewards."""

    def reward(self, state: int, step_type: dm_env.StepType, observations: Any) -> Any:
        reward = super().reward(state, step_type, observations)
        return None if reward is None else 2 * reward


def last_of(env: Any, action: Any) -> dm_env.TimeStep:
    timestep = env.reset()
    while not np.all(timestep.last()):
        timestep = env.step(action)
    return timestep


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_has_a_world_of_its_own_with_the_same_arguments(
    catch_server: Server, way: str
) -> None:
    settings = {"rows": 4, "columns": 1}
    arguments: dict[str, Any] = {"nested_tensors": False, "adaptor_class": Doubled}
    with make(catch_server.address, settings, request_timeout=30, **arguments) as env:
        settings["rows"] = 9
        env.reset()
        env.step({"paddle": 1})
        with WAYS[way](env) as other:
            assert type(other) is Doubled
            assert other.world_name != env.world_name
            assert other.observation_spec()["board"].shape == (4, 1)
            assert other.step({"paddle": 1}).first()
            assert last_of(other, {"paddle": 1}).reward == 2.0
            assert catch_server.stats().worlds == 2
        assert env.step({"paddle": 1}).mid()
    with WAYS[way](env) as after_close:
        assert after_close.reset().first()
    assert catch_server.stats().worlds == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_batch(catch_server: Server, way: str) -> None:
    each = [{"rows": 3, "columns": 1, "seed": seed} for seed in range(2)]
    action = {"paddle": np.array([1, 1])}
    with BatchedEnvironment(
        catch_server.address, 2, each, nested_tensors=False, num_batches=0
    ) as env:
        env.reset()
        with WAYS[way](env) as other:
            assert (other.num_envs, other.action_spec()) == (2, env.action_spec())
            assert last_of(other, action).reward.tolist() == [1.0, 1.0]
            assert catch_server.stats().worlds == 4
        assert env.step(action).mid().all()


def test_a_launched_server_is_launched_again() -> None:
    address = "python:dm_env_rpc_client.server:Catch"
    with make(address, timeout=60) as env, copy.deepcopy(env) as other:
        assert other.connection.address != env.connection.address
        assert last_of(other, {"paddle": 1}).last()


def _step_in_child(transport: str, told: Any, env: Any) -> None:
    obey(transport)
    with copy.deepcopy(env) if isinstance(env, DmEnvAdaptor) else env() as own:
        told.send((own.reset().first(), own.world_name))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_have_worlds_of_their_own(
    catch_server: Server, method: str, transport: str
) -> None:
    if (method, transport) == ("fork", "grpc"):
        pytest.skip("grpcio does not work in a fork of a process that serves with it")
    context: Any = multiprocessing.get_context(method)
    heard, told = context.Pipe(duplex=False)
    with make(catch_server.address) as env:
        env.reset()
        child = context.Process(target=_step_in_child, args=(forced(), told, env))
        child.start()
        told.close()
        with heard:
            is_first, world_name = heard.recv()
        child.join()
        assert (child.exitcode, is_first) == (0, True)
        assert world_name != env.world_name
        assert env.step({"paddle": 1}).mid()


@pytest.mark.parametrize("name", ["token", "metadata"])
@pytest.mark.parametrize("kind", [make, BatchedEnvironment])
def test_secrets_are_in_copies_and_in_no_pickle(kind: Callable[..., Any], name: str) -> None:
    secret: Any = {"token": "hunter2", "metadata": [("authorization", "Bearer hunter2")]}[name]
    with serve(Catch, token="hunter2") as server, kind(server.address, **{name: secret}) as env:
        for dump in (pickle.dumps, cloudpickle.dumps):
            with pytest.raises(SpecError, match=f"its {name} may be a secret") as raised:
                dump(env)
            assert "hunter2" not in str(raised.value)
        with copy.deepcopy(env) as other:
            assert np.all(other.reset().first())


def test_an_environment_on_a_given_connection_says_why_it_cannot(catch_server: Server) -> None:
    with connect(catch_server.address) as connection:
        env, _ = create_and_join_world(connection)
        for way in WAYS.values():
            with pytest.raises(SpecError, match="uses its caller's connection"):
                way(env)
        assert env.reset().first()
