"""The server in one file, which runs in a process of its own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import dm_env_rpc_client as d
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from tests.support.one_file import one_file
from tests.transcripts.environments import hosted
from tests.transcripts.scenarios import errors, gymnasium_ways
from tests.transcripts.scenarios.batches import informed
from tests.transcripts.scenarios.playing import WAYS, act, see_steps
from tests.transcripts.scene import Scenario, Scene


def hosted_in_one_file(kind: str = "counter", **settings: Any) -> Any:
    """The same environments, with properties as that server takes them."""
    env = hosted(kind, **settings)
    if kind == "counter":
        env.properties = {
            "level.count": lambda: env._count,
            "level.start": (lambda: env._start, env._set_start),
        }
    return env


def one_file_server() -> contextlib.AbstractContextManager[str]:
    """Serves them; gives the address."""
    return one_file(f"{__name__}:{hosted_in_one_file.__name__}")


class ToOneFile(Scene):
    """A scene whose server is the one file, whatever is to be served."""

    kind = "counter"

    def __init__(self, scene: Scene, kind: str):
        self.__dict__ = scene.__dict__
        self.kind = kind

    def serve(self, environment: Any, **options: Any) -> str:
        return self.tap(self.shared.get(one_file_server))


def way(name: str, **settings: Any) -> Callable[[Scene], Any]:
    def play(scene: Scene) -> Any:
        address = ToOneFile(scene, "counter").serve(None)
        return WAYS[name](scene, address, {"kind": "counter", **settings})

    return play


def in_gymnasium(scene: Scene) -> None:
    import gymnasium

    address = ToOneFile(scene, "informed").serve(None)
    settings = {"kind": "informed", "length": 2, "both": True}
    with gymnasium.make(
        gymnasium_ways.REMOTE, address=address, create_world_settings=settings
    ) as env:
        scene.see("spaces", repr(env.observation_space), repr(env.action_space))
        for episode in range(2):
            scene.see("reset", env.reset(seed=episode + 4, options={"level": [episode, 2.5]}))
            for step in range(2):
                scene.see("step", env.step(gymnasium_ways.move(step)))


def vector(scene: Scene, mode: str) -> None:
    informed(ToOneFile(scene, "informed"), mode, kind="informed")


def broken(scene: Scene, what: str) -> None:
    address = ToOneFile(scene, "wrong").serve(None)
    with scene.fails("make"), d.make(address, {"kind": "wrong", "what": what}) as env:
        for name in ("reset", "step"):
            with scene.fails(name):
                scene.see(name, env.reset() if name == "reset" else env.step({"a": 1}))


def fails(scene: Scene, **settings: Any) -> None:
    errors.fails(ToOneFile(scene, "counter"), None, {"kind": "counter", **settings})


def refused(scene: Scene) -> None:
    address = ToOneFile(scene, "counter").serve(None)
    with d.connect(address) as connection:
        with scene.fails("settings"):
            d.create_world(connection, {"kind": "counter", "length": 0})
        with scene.fails("a batch"):
            d.create_world(connection, {"kind": "counter", "num_envs": 2})
        world = d.create_world(connection, {"kind": "counter"})
        with scene.fails("joining no world"):
            d.join_world(connection, "nowhere")
        with d.join_world(connection, world) as env:
            see_steps(scene, env, steps=1)
            with scene.fails("joining twice"):
                d.join_world(connection, world)
            with scene.fails("destroying a joined world"):
                d.destroy_world(connection, world)
            d.reset_world(connection, world, {"start": 9})
            scene.see("step", env.step(act(1)))
            scene.see("reset", env.reset({"start": 20}))
        d.destroy_world(connection, world)


def properties(scene: Scene) -> None:
    address = ToOneFile(scene, "counter").serve(None)
    with d.connect(address) as connection:
        served = PropertiesExtension(connection)
        with scene.fails("batches"):
            served.read("batch.max_num_envs")
        env, _ = d.create_and_join_world(connection, {"kind": "counter"}, {})
        scene.see("list", [repr(spec) for spec in served.walk()])
        served["level.start"] = 4
        scene.see("read", served["level.start"], served["level.count"])
        for key, value in {"level.count": 3, "level.start": -1, "no": 2}.items():
            with scene.fails(f"{key} = {value}"):
                served[key] = value
        env.close()


SCENARIOS: dict[str, Scenario] = {
    **{
        name: Scenario(way(name))
        for name in ("make", "futures", "asyncio", "batched", "vector")
    },
    "make, truncated": Scenario(way("make", ends="truncated", discount=0.5)),
    "Gymnasium": Scenario(in_gymnasium),
    **{
        f"vector, {mode}": Scenario(functools.partial(vector, mode=mode))
        for mode in ("NextStep", "SameStep")
    },
    **{
        f"raises in {method}": Scenario(functools.partial(fails, fails_in=method))
        for method in ("__init__", "step")
    },
    **{
        f"wrong: {what}": Scenario(functools.partial(broken, what=what))
        for what in ("another shape", "step returns None")
    },
    "refused": Scenario(refused),
    "properties": Scenario(properties),
}  # fmt: skip
