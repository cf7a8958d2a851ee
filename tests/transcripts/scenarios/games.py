"""Worlds for several agents: games in lock step, and environments of PettingZoo."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dm_env_rpc_client as d
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Race
from tests.transcripts.environments import Pair, players
from tests.transcripts.scene import Scenario, Scene


@contextlib.contextmanager
def two(address: str, **settings: Any) -> Iterator[tuple[Any, Any, str, Any]]:
    """Two players of one world, its name, and the connection that created it."""
    with d.connect(address) as owner, d.connect(address) as one, d.connect(address) as two:
        world = d.create_world(owner, settings)
        left = d.join_world(one, world, {"side": "left"})
        right = d.join_world(two, world, {"side": "right"})
        yield left, right, world, owner
        right.close()
        left.close()
        d.destroy_world(owner, world)


def together(scene: Scene, left: Any, right: Any, *actions: Any) -> None:
    """One step of both; no actions: the beginning of a sequence."""
    one, other = actions or ({}, {})
    waiting = left.submit_step(one)
    seen = right.step(other)
    scene.see("right", seen)
    scene.see("left", waiting.result(60))


def lock_step(scene: Scene) -> None:
    with two(scene.serve(Pair), length=2) as (left, right, _, _owner):
        scene.see("turn", PropertiesExtension(left.connection)["turn"])
        for _ in range(2):
            together(scene, left, right)
            together(scene, left, right, {"do": 1}, {"do": 2})
            together(scene, left, right, {"do": 3}, {"do": 4})


def reset_by_others(scene: Scene) -> None:

    class Watched(Pair):
        configured = threading.Event()

    with two(scene.serve(Watched), length=5) as (left, right, world, owner):
        together(scene, left, right)
        together(scene, left, right, {"do": 1}, {"do": 2})
        # It is answered when both have been told.
        reset = scene.start(lambda: d.reset_world(owner, world, {"length": 1}))
        assert Watched.configured.wait(60)
        scene.see("left", left.step({"do": 1}))
        scene.see("right", right.step({"do": 1}))
        reset.result(60)
        together(scene, left, right)
        together(scene, left, right, {"do": 1}, {"do": 2})
        with scene.fails("a setting that is refused"):
            d.reset_world(owner, world, {"color": 1})


def leaving(scene: Scene) -> None:
    """A player leaves, and another one takes the seat."""
    with two(scene.serve(Pair)) as (left, right, world, owner):
        together(scene, left, right)
        with scene.fails("no seat"):
            d.join_world(owner, world, {"side": "left"})
        with scene.fails("no such seat"):
            d.join_world(owner, world, {"side": "middle"})
        left.close()
        scene.see("right", right.step({"do": 2}))
        again = d.join_world(owner, world, {"side": "left"})
        together(scene, again, right)
        again.close()


def one_that_exists(scene: Scene) -> None:
    address = scene.serve(Race(length=1))
    with d.connect(address) as one, d.connect(address) as other:
        first, second = d.join_world(one, ""), d.join_world(other, "", {"lane": 1})
        together(scene, first, second)
        together(scene, first, second, {"move": 1}, {})
        second.close()
        first.close()
        with scene.fails("creating another"):
            d.create_world(one)
        with scene.fails("destroying it"):
            d.destroy_world(one, "")


class Exploding(Pair):
    """Raises in its second step."""

    def step(self, actions: Any) -> None:
        super().step(actions)
        if self._count == 2:
            raise RuntimeError("the physics exploded")


def raising(scene: Scene) -> None:
    with two(scene.serve(Exploding), length=5) as (left, right, _, _):
        together(scene, left, right)
        together(scene, left, right, {"do": 1}, {"do": 1})
        waiting = left.submit_step({"do": 1})
        with scene.fails("right"):
            right.step({"do": 1})
        with scene.fails("left"):
            waiting.result(60)


def waiting_for(scene: Scene) -> None:
    """A property says for whom a player waits: for nobody, before it steps."""
    with two(scene.serve(Pair)) as (_, _, world, owner):
        scene.see("waits", PropertiesExtension(owner)[f"waiting_for.{world}"])
        with scene.fails("no world"):
            scene.see("waits", PropertiesExtension(owner)["waiting_for.world-99"])


def parallel(scene: Scene, **options: Any) -> None:
    env = RemoteParallelEnv(scene.serve(players), create_world_settings={"length": 3}, **options)
    with contextlib.closing(env):
        scene.see("about", env.possible_agents, repr(env.action_space("whole")), env.metadata)
        for episode in range(2):
            scene.see("reset", env.reset(seed=episode, options={"level": episode}))
            while env.agents:
                moves = {agent: len(str(agent)) % 4 for agent in env.agents}
                scene.see("step", env.step(moves))


def some_agents(scene: Scene) -> None:
    address = scene.serve(players)
    with d.connect(address) as owner, d.connect(address) as others:
        world = d.create_world(owner, {})
        mine = RemoteParallelEnv(address, ["early", "late"], world_name=world)
        other = d.join_world(others, world, {"agent": "whole"})
        scene.see("spec", repr(other.action_spec()), repr(other.observation_spec()))
        future = other.step_async({})
        scene.see("mine", mine.reset(seed=4))
        scene.see("other", future.result(60))
        future = other.step_async({"action": 1})
        scene.see("mine", mine.step({"early": 2}))
        scene.see("other", future.result(60))
        with scene.fails("an agent that is taken"):
            d.join_world(owner, world, {"agent": "early"})
        with scene.fails("an agent that is none"):
            d.join_world(owner, world, {"agent": "nobody"})
        mine.close()
        other.close()
        d.destroy_world(owner, world)


def parallel_of_a_game(scene: Scene) -> None:
    """Of a world that says nothing of PettingZoo."""
    agents: Any = {"left": {"side": "left"}, "right": {"side": "right"}}
    env = RemoteParallelEnv(scene.serve(Pair), agents)
    with contextlib.closing(env):
        scene.see("reset", env.reset())
        while env.agents:
            scene.see("step", env.step(dict.fromkeys(env.agents, 1)))


PLAYED: dict[str, Callable[[Scene], Any]] = {
    "lock step": lock_step,
    "reset by others": reset_by_others,
    "leaving": leaving,
    "one that exists": one_that_exists,
    "an error": raising,
    "waiting for others": waiting_for,
    "PettingZoo": parallel,
    "PettingZoo, some agents": some_agents,
    "PettingZoo, of a game": parallel_of_a_game,
}

SCENARIOS: dict[str, Scenario] = {name: Scenario(play) for name, play in PLAYED.items()}
