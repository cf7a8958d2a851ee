"""One Gymnasium environment in each way to use it: seeds, options, infos, pictures, calls."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np

import dm_env_rpc_client as d
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from tests.transcripts.environments import Counter, Informed
from tests.transcripts.scenarios.playing import act, nothing, see_steps
from tests.transcripts.scene import Scenario, Scene

REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"


def move(step: int) -> tuple[Any, Any]:
    """An action of `Informed`."""
    return np.int64(step % 3), np.array([step / 4 - 1])


def remote(scene: Scene, address: str, **options: Any) -> Any:
    env = gymnasium.make(REMOTE, address=address, disable_env_checker=True, **options)
    return scene.stack.enter_context(env)


def episodes(scene: Scene, serving: dict[str, Any], **options: Any) -> None:
    settings = {"first": 3, "length": 2}
    with gymnasium.make(
        REMOTE, address=scene.serve(Informed, **serving), create_world_settings=settings, **options
    ) as env:
        scene.see("spaces", repr(env.observation_space), repr(env.action_space))
        scene.see("about", env.unwrapped.metadata, repr(env.unwrapped.spec is None))
        for episode in range(2):
            found = env.reset(seed=episode + 4, options={"level": [episode, 2.5], "who": "me"})
            scene.see("reset", found)
            for step in range(2):
                scene.see("step", env.step(move(step)))
        scene.see("reset", env.reset())


def both(scene: Scene) -> None:
    env = remote(scene, scene.serve(Informed), create_world_settings={"length": 1, "both": True})
    env.reset()
    scene.see("step", env.step(move(1)))
    with scene.fails("a step after the end"):
        env.step(move(1))


def raising(scene: Scene) -> None:
    env = remote(scene, scene.serve(Informed), create_world_settings={"fails_at": 1})
    env.reset()
    with scene.fails("step"):
        env.step(move(1))
    with scene.fails("step after the error"):
        env.step(move(1))
    scene.see("reset", env.reset(seed=5))


def pictures(scene: Scene) -> None:
    address = scene.serve(Informed)
    for mode in ("rgb_array", "ansi", "rgb_array_list", "human"):
        with scene.fails(mode):
            env = remote(scene, address, render_mode=mode)
            env.reset(seed=1)
            env.step(move(1))
            scene.see("render", env.render())
            env.close()
    with RemoteVectorEnv(address, 2, render_mode="rgb_array") as envs:
        envs.reset()
        scene.see("render", envs.render())


def calls(scene: Scene) -> None:
    address = scene.serve(Informed, callable_names=["masks", "level"], settable_names=["level"])
    env = remote(scene, address)
    env.reset()
    scene.see("masks", env.get_wrapper_attr("masks")())
    scene.see("level", env.unwrapped.level)
    env.set_wrapper_attr("level", 2)
    scene.see("level", env.unwrapped.level)
    with scene.fails("what is not allowed"):
        env.get_wrapper_attr("secret")
    with RemoteVectorEnv(address, 2) as envs:
        envs.reset()
        scene.see("masks", envs.call("masks"))
        envs.set_attr("level", [2, 3])
        scene.see("level", envs.get_attr("level"))
        with scene.fails("what is not allowed"):
            envs.call("close")


def of_dm_env(scene: Scene) -> None:
    """An environment of dm_env, seen by Gymnasium."""
    env = remote(scene, scene.serve(Counter), create_world_settings={"length": 2})
    scene.see("spaces", repr(env.observation_space), repr(env.action_space))
    with scene.fails("a seed that is refused"):
        env.reset(seed=1)
    scene.see("reset", env.reset())
    for step in range(2):
        scene.see("step", env.step(act(step)))
    with d.make(scene.serve(Counter)) as plain:
        wrapped = GymnasiumEnv(plain)
        scene.see("reset", wrapped.reset())


def seen_by_dm_env(scene: Scene) -> None:
    with d.make(scene.serve(Informed)) as env:
        see_steps(scene, env, lambda step: nothing(env), 3)
        scene.see("settings", env.reset({"seed": 1, "options": {"low": -0.1}}))
        scene.see("infos", env.reset({"infos": True, "seed": 2}))
        scene.see("step", env.step(nothing(env)))
        with scene.fails("a seed that is none"):
            env.reset({"seed": "x"})


SCENARIOS: dict[str, Scenario] = {
    "episodes": Scenario(functools.partial(episodes, serving={})),
    "episodes, grpcio's client": Scenario(
        functools.partial(episodes, serving={}, transport="grpc")
    ),
    "episodes, grpcio's server": Scenario(
        functools.partial(episodes, serving={"transport": "grpc"})
    ),
    "terminated and truncated": Scenario(both),
    "an error": Scenario(raising),
    "pictures": Scenario(pictures),
    "calls": Scenario(calls),
    "of dm_env": Scenario(of_dm_env),
    "seen by dm_env": Scenario(seen_by_dm_env),
}
