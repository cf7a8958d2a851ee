"""Worlds: creating, joining, resetting, leaving and destroying, by one client and by others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dm_env_rpc_client as d
from tests.transcripts.environments import Counter
from tests.transcripts.scenarios.playing import act, see_steps
from tests.transcripts.scene import Scenario, Scene


def parts(scene: Scene) -> None:
    with d.connect(scene.serve(Counter)) as connection:
        world = d.create_world(connection, {"start": 5})
        with d.join_world(connection, world) as env:
            see_steps(scene, env, steps=2)
            d.reset_world(connection, world)
            scene.see("after a ResetWorld", env.step(act(1)))
            scene.see("step", env.step(act(1)))
        with d.join_world(connection, world) as env:
            see_steps(scene, env, steps=1)
        d.reset_world(connection, world, {"start": 70})
        with d.join_world(connection, world) as env:
            see_steps(scene, env, steps=1)
            d.leave_world(connection)
            with scene.fails("a step without a world"):
                env.step(act(1))
        d.leave_world(connection)
        d.destroy_world(connection, world)


async def parts_with_asyncio(scene: Scene) -> None:
    connection = await d.connect_async(scene.serve(Counter))
    world = await d.create_world_async(connection, {"start": 5})
    env = await d.join_world_async(connection, world)
    scene.see("reset", await env.reset())
    scene.see("step", await env.step(act(1)))
    await d.reset_world_async(connection, world, {"start": 6})
    scene.see("step", await env.step(act(1)))
    await env.close()
    await d.leave_world_async(connection)
    await d.destroy_world_async(connection, world)
    env, world = await d.create_and_join_world_async(connection, {}, {})
    await env.close()
    await d.destroy_world_async(connection, world)
    await connection.close()


def refused(scene: Scene) -> None:
    """Requests that the state of a stream, or of a world, does not allow."""
    with d.connect(scene.serve(Counter)) as connection:
        world = d.create_world(connection)
        with scene.fails("joining no world"):
            d.join_world(connection, "world-77")
        with scene.fails("destroying no world"):
            d.destroy_world(connection, "world-77")
        with scene.fails("resetting no world"):
            d.reset_world(connection, "world-77")
        with scene.fails("settings of a join"):
            d.join_world(connection, world, {"color": "red"})
        with d.join_world(connection, world):
            with scene.fails("joining twice"):
                d.join_world(connection, world)
            with scene.fails("destroying a joined world"):
                d.destroy_world(connection, world)
            with scene.fails("settings of a reset"):
                d.reset_world(connection, world, {"length": 0})
        d.destroy_world(connection, world)
        with scene.fails("destroying twice"):
            d.destroy_world(connection, world)


def by_others(scene: Scene) -> None:
    """A client resets, and is not let into, a world that another one has joined."""

    class Watched(Counter):
        made = threading.Event()

    address = scene.serve(Watched)
    with d.connect(address) as owner, d.connect(address) as other:
        world = d.create_world(owner)
        env = d.join_world(owner, world)
        scene.see("reset", env.reset())
        scene.see("step", env.step(act(1)))
        Watched.made.clear()
        # It is answered when the agent has been told; its settings make an environment before.
        reset = scene.start(lambda: d.reset_world(other, world, {"start": 30}))
        assert Watched.made.wait(60)
        scene.see("after the other's ResetWorld", env.step(act(2)))
        reset.result(60)
        scene.see("step", env.step(act(2)))
        with scene.fails("joining what is joined"):
            d.join_world(other, world)
        with scene.fails("destroying what is joined"):
            d.destroy_world(other, world)
        env.close()
        env = d.join_world(other, world)
        scene.see("reset", env.reset())
        env.close()
        d.destroy_world(other, world)
        with scene.fails("destroyed by the other"):
            d.join_world(owner, world)


def reopened(scene: Scene) -> None:
    address = scene.serve(Counter)
    connection = d.connect(address, metadata=[("who", "me")])
    world = d.create_world(connection)
    with connection.reopen() as again:
        connection.close()
        with d.join_world(again, world) as env:
            see_steps(scene, env, steps=1)
        d.destroy_world(again, world)


def existing(scene: Scene) -> None:
    """An environment that exists has one world at a time."""
    address = scene.serve(Counter(start=4))
    with d.make(address) as env:
        see_steps(scene, env, steps=2)
        with scene.fails("a second world"):
            d.make(address)
        with scene.fails("a reset with settings"):
            env.reset({"start": 3})
    with d.make(address) as env:
        see_steps(scene, env, steps=1)
    with scene.fails("settings"):
        d.make(address, {"start": 3})


class Configured(Counter):
    """Takes some settings itself."""

    reset_settings = ("start",)
    default_actions = {"add": 1, "wish": [0.5, 0.5]}  # noqa: RUF012

    def configure(self, settings: Any) -> None:
        if settings["start"] > 100:
            raise ValueError("start is too large")
        self._start = settings["start"]


def configured(scene: Scene) -> None:
    address = scene.serve(Configured, default_actions={"talk.say": "x"})
    with d.make(address) as env:
        see_steps(scene, env, lambda step: {}, 2)
        scene.see("reset", env.reset({"start": 40}))
        scene.see("both kinds", env.reset({"start": 41, "length": 1}))
        scene.see("step", env.step({"add": 2}))
        with scene.fails("refused"):
            env.reset({"start": 101})
        scene.see("step", env.step({}))


async def cancelled(scene: Scene) -> None:
    """A request that is awaited no more, and what the connection does then."""
    connection = await d.connect_async(scene.serve(Counter))
    world = await d.create_world_async(connection)
    env = await d.join_world_async(connection, world)
    await env.reset()
    scene.see("step", await asyncio.wait_for(env.step(act(1)), 60))
    await env.close()
    await connection.close()
    with scene.fails("closed"):
        await d.create_world_async(connection)


SCENARIOS: dict[str, Scenario] = {
    "parts of make": Scenario(parts),
    "parts of make, asyncio": Scenario(parts_with_asyncio),
    "refused": Scenario(refused),
    "others": Scenario(by_others),
    "another connection": Scenario(reopened),
    "an environment that exists": Scenario(existing),
    "settings and actions of its own": Scenario(configured, by_hand=False),
    "a connection that ends, asyncio": Scenario(cancelled),
}
