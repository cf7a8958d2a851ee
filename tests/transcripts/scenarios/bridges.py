"""gym-socket-api and EnvCApi: what the bridges send, and what is served through them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import dm_env_rpc_client as d
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.bridges.env_c_api import environment_factory
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from tests.bridges.env_c_api.compiling import compile_library
from tests.transcripts.environments import SpaceMirror
from tests.transcripts.scene import Scenario, Scene


class Walk(gymnasium.Env[Any, Any]):
    """Has what gym-socket-api can describe; an episode has two steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-4, 4, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        return np.array([0.0, 0.5]), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        if action == 2:
            raise RuntimeError("the physics exploded")
        observation = np.array([self._count, action / 4])
        return observation, 1.5, False, self._count == 2, {"count": self._count}


def _mirror(space: Any, first: Any) -> SpaceMirror:
    return SpaceMirror(space, first)


ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "walk": Walk,
    "pixels": functools.partial(
        _mirror, spaces.Box(0, 255, (2, 2, 1), np.uint8), np.zeros((2, 2, 1), np.uint8)
    ),
    "pair": functools.partial(
        _mirror,
        spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2))),
        (np.int64(0), np.zeros(2, np.int8)),
    ),
}


def socket(scene: Scene, name: str, dialect: Any, actions: list[Any], **options: Any) -> None:
    server = gym_socket.serve(ENVIRONMENTS, "localhost:0", dialect=dialect, **options)
    address = scene.tap_other(scene.stack.enter_context(server).address)
    connected = functools.partial(gym_socket.GymSocketEnvironment, dialect=dialect)
    with scene.fails("session"), connected(address, name) as env:
        scene.see("specs", repr(env.action_spec()), repr(env.observation_spec()))
        scene.see("reset", env.reset())
        for action in actions:
            with scene.fails("step"):
                scene.see("step", env.step(action))


def socket_served(scene: Scene) -> None:
    """A client of dm_env_rpc, a server of it, and behind that one of gym-socket-api."""
    server = scene.stack.enter_context(gym_socket.serve(ENVIRONMENTS, "localhost:0"))
    behind = scene.tap_other(server.address)
    address = scene.serve(functools.partial(gym_socket.GymSocketEnvironment, behind, "walk"))
    with d.make(address) as env:
        scene.see("reset", env.reset())
        for action in (1, 0, 1):
            scene.see("step", env.step({"action": action}))


ACTION = {"turn": {"horizontal": 2}, "jump": 1, "throttle": -1.0, "say": "abc"}

SMALL = {"seed": 5, "width": 4, "height": 2}


def library(scene: Scene, version: str, **options: Any) -> None:
    factory = environment_factory(
        compile_library("complete", version),
        "complete_connect",
        version=version,
        settings={"width": 4, "height": 2},
        **options,
    )
    address = scene.serve(factory)
    # Destroying its world ends a process; `make` does not wait long for that.
    with d.connect(address) as connection:
        settings = {"length": 2, "seed": 11, "episode": 3}
        env, world = d.create_and_join_world(connection, settings, {})
        scene.see("specs", repr(env.action_spec()), repr(env.observation_spec()))
        scene.see("reset", env.reset())
        for _ in range(3):
            scene.see("step", env.step(ACTION))
        scene.see("reset", env.reset({"seed": 500}))
        env.close()
        d.destroy_world(connection, world)
        with scene.fails("a setting that is unknown"):
            d.create_world(connection, {"color": "red"})


def library_fails(scene: Scene) -> None:
    address = scene.serve(
        environment_factory(compile_library("complete", "1.4"), "complete_connect")
    )
    with d.connect(address) as connection:
        settings = {**SMALL, "length": 1, "end": "error"}
        env, world = d.create_and_join_world(connection, settings, {})
        env.reset()
        for name in ("step", "step", "reset"):
            with scene.fails(name):
                scene.see(name, env.step(ACTION) if name == "step" else env.reset())
        env.close()
        d.destroy_world(connection, world)


def library_properties(scene: Scene) -> None:
    address = scene.serve(
        environment_factory(compile_library("complete", "2.2"), "complete_connect", version="2.2")
    )
    with d.connect(address) as connection:
        env, world = d.create_and_join_world(connection, SMALL, {})
        properties = PropertiesExtension(connection)
        scene.see("list", [repr(spec) for spec in properties.walk()])
        for key in ("no", ""):
            with scene.fails(key):
                properties.read(key)
        env.close()
        d.destroy_world(connection, world)


SCENARIOS: dict[str, Scenario] = {
    **{
        f"gym-socket, {dialect}": Scenario(
            functools.partial(socket, name="walk", dialect=dialect, actions=[1, 0, 1, 2])
        )
        for dialect in ("first", "latest")
    },
    "gym-socket, pixels": Scenario(
        functools.partial(
            socket, name="pixels", dialect="first", actions=[np.full((2, 2, 1), 7, np.uint8)]
        )
    ),
    "gym-socket, a tuple": Scenario(
        functools.partial(socket, name="pair", dialect="first", actions=[(1, np.array([0, 1]))])
    ),
    "gym-socket, no such environment": Scenario(
        functools.partial(socket, name="nowhere", dialect="first", actions=[])
    ),
    "gym-socket, processes": Scenario(
        functools.partial(socket, name="walk", dialect="first", actions=[1], processes=True)
    ),
    "gym-socket, served": Scenario(socket_served),
    **{
        f"EnvCApi {version}": Scenario(
            functools.partial(library, version=version), needs="compiler"
        )
        for version in ("1.4", "2.2")
    },
    "EnvCApi, events": Scenario(
        functools.partial(library, version="2.1", events_observation="events"), needs="compiler"
    ),
    "EnvCApi, an error": Scenario(library_fails, needs="compiler"),
    "EnvCApi, properties": Scenario(library_properties, needs="compiler"),
}
