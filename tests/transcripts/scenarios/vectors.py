"""Vector environments that are served as they are: one world, whose rows are its own."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np

import dm_env_rpc_client as d
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from tests.transcripts.environments import Exact, Informed
from tests.transcripts.scene import Scenario, Scene

MODES = ("NextStep", "SameStep", "Disabled")


def vector(scene: Scene, mode: str) -> None:
    with RemoteVectorEnv(scene.serve(functools.partial(Exact, mode=mode)), 2) as envs:
        scene.see("spaces", repr(envs.single_observation_space), repr(envs.single_action_space))
        scene.see("reset", envs.reset(seed=5))
        for step in range(4):
            *_, terminated, _, _ = found = envs.step(np.array([step % 4, 1]))
            scene.see("step", found)
            if mode == "Disabled" and terminated.any():
                scene.see("reset", envs.reset(options={"reset_mask": terminated}))


def plain(scene: Scene, mode: str) -> None:
    with d.make(scene.serve(functools.partial(Exact, mode=mode)), {"num_envs": 2}) as env:
        scene.see("specs", repr(env.action_spec()), repr(env.observation_spec()))
        scene.see("reset", env.reset({"seed": 1}))
        for _ in range(3):
            scene.see("step", env.step({"action": [1, 2]}))


def fixed(scene: Scene) -> None:
    """The number of rows is the server's."""
    address = scene.serve(lambda: Exact(3))
    with RemoteVectorEnv(address) as envs:
        scene.see("rows", envs.num_envs, envs.reset(seed=[1, 2, 3]))
        scene.see("step", envs.step(np.array([1, 2, 3])))
    with scene.fails("another number"):
        RemoteVectorEnv(address, 2)


def of_gymnasium(scene: Scene) -> None:
    """Gymnasium's own SyncVectorEnv."""

    def make(num_envs: int = 2) -> Any:
        return gymnasium.vector.SyncVectorEnv([Informed] * num_envs)

    with RemoteVectorEnv(scene.serve(make), 2) as envs:
        scene.see("reset", envs.reset(seed=[3, 8]))
        for step in range(4):
            moves = (np.array([step % 3, 1]), np.array([[0.5], [step / 4]]))
            scene.see("step", envs.step(moves))
        scene.see("reset", envs.reset(seed=[None, 1]))


def properties(scene: Scene) -> None:
    with d.connect(scene.serve(Exact)) as connection:
        env, _ = d.create_and_join_world(connection, {"num_envs": 2}, {})
        served = PropertiesExtension(connection)
        for key in ("gymnasium.vector", "batch.num_envs", "batch.autoreset_mode"):
            scene.see(key, served[key])
        env.close()


SCENARIOS: dict[str, Scenario] = {
    **{mode: Scenario(functools.partial(vector, mode=mode)) for mode in MODES},
    **{f"{mode}, plain": Scenario(functools.partial(plain, mode=mode)) for mode in MODES},
    "a number of its own": Scenario(fixed),
    "SyncVectorEnv": Scenario(of_gymnasium),
    "properties": Scenario(properties),
}
