"""The other end is not of this package: PyPI's dm-env-rpc as client, and a server on grpcio."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor

import dm_env_rpc_client as d
from tests.peers.servers import SERVERS
from tests.transcripts.environments import Counter, Informed
from tests.transcripts.scenarios import values
from tests.transcripts.scenarios.playing import act, acts, nothing
from tests.transcripts.scene import Scenario, Scene

Environment = reference_adaptor.DmEnvAdaptor


@contextlib.contextmanager
def reference_client(scene: Scene, address: str) -> Iterator[Any]:
    """A connection of PyPI's package, whose own `close` leaves a thread."""
    connection = reference_connection.create_secure_channel_and_connect(address)
    yield connection
    connection._stream._requests.put(None)
    connection.close()


def _flat(action: Any) -> dict[str, Any]:
    return d.flatten_dict(action, ".")


def reference(scene: Scene, serving: Any, settings: Any, actions: Any) -> None:
    with reference_client(scene, scene.serve(serving)) as connection:
        env, world = reference_adaptor.create_and_join_world(connection, settings, {})
        scene.see("specs", sorted(env.action_spec()), sorted(env.observation_spec()))
        for name in ("reset", "step", "step", "step", "reset"):
            with scene.fails(name):
                timestep = env.reset() if name == "reset" else env.step(actions(env))
                kept = timestep.observation
                seen = {key: kept[key] for key in sorted(kept)}
                scene.see(name, timestep.step_type.name, timestep.reward, timestep.discount, seen)
        env.close()
        connection.send(d.dm_env_rpc_pb2.DestroyWorldRequest(world_name=world))


def of_dtypes(scene: Scene, dtype: str) -> None:
    shapes = values.shapes(dtype)

    def actions(env: Any) -> dict[str, Any]:
        return {name: values.filled(spec, values.NUMBERS[dtype], 0)
                for name, spec in shapes.items() if name != "empty"}  # fmt: skip

    structure = {name: spec for name, spec in shapes.items() if name != "empty"}
    reference(scene, functools.partial(values._mirror, structure), {}, actions)


@contextlib.contextmanager
def grpcio_server() -> Iterator[str]:
    with SERVERS["grpcio"]() as peer:
        yield peer.hear()


def grpcio(scene: Scene, settings: Any, actions: Any) -> None:
    address = scene.tap(scene.shared.get(grpcio_server))
    with d.make(address, settings) as env:
        scene.see("specs", sorted(env.action_spec()), sorted(env.observation_spec()))
        scene.see("reset", env.reset())
        for step in range(3):
            with scene.fails("step"):
                scene.see("step", env.step(actions(step)))
        with scene.fails("reset"):
            scene.see("reset", env.reset({"length": 5}))
    with scene.fails("settings that are refused"):
        d.make(address, {"color": "red"})
    with d.BatchedEnvironment(address, 2, settings) as envs:
        scene.see("reset", envs.reset())


def echoed(step: int) -> dict[str, Any]:
    """Actions of the server on grpcio, of variable length."""
    return {
        "float": np.full(step, 0.5, np.float32),
        "int64": np.arange(3) * step,
        "uint8": np.full(5, step, np.uint8),
        "bool": np.array([True, step == 1]),
        "string": np.array(["a", "b" * step], object),
    }


PLAYED: dict[str, Callable[[Scene], Any]] = {
    "PyPI's client": functools.partial(
        reference, serving=Counter, settings={"start": 3}, actions=lambda env: _flat(act(2))
    ),
    "PyPI's client, a batch": functools.partial(
        reference,
        serving=Counter,
        settings={"num_envs": 2},
        actions=lambda env: _flat(acts(2, 2)),
    ),
    "PyPI's client, Gymnasium": functools.partial(
        reference, serving=Informed, settings={}, actions=nothing
    ),
    **{
        f"PyPI's client, {dtype}": functools.partial(of_dtypes, dtype=dtype)
        for dtype in ("float32", "int8", "uint64", "bool", "str")
    },
    "a server on grpcio": functools.partial(grpcio, settings={"length": 2}, actions=echoed),
}

SCENARIOS: dict[str, Scenario] = {
    name: Scenario(play, by_hand=False) for name, play in PLAYED.items()
}
