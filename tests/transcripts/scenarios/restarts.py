"""Connections that break, and environments that begin again."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import gymnasium

import dm_env_rpc_client as d
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.support.scripted import settles
from tests.transcripts.environments import Counter, Informed, players
from tests.transcripts.scenarios.batches import moves
from tests.transcripts.scenarios.gymnasium_ways import REMOTE, move
from tests.transcripts.scenarios.playing import act, acts
from tests.transcripts.scene import Scenario, Scene

RESTART = d.Restart(attempts=5, backoff=0.01)


def made(scene: Scene) -> None:
    with d.make(scene.serve(Counter), {"start": 5}, restart=RESTART) as env:
        env.on_restart(lambda again: scene.see("restarts", again.restarts))
        scene.see("reset", env.reset())
        scene.see("step", env.step(act(1)))
        scene.cut()
        scene.see("lost", env.step(act(1)))
        scene.see("step", env.step(act(1)))
        scene.see("step", env.step(act(1)))
        scene.cut()
        scene.see("reset", env.reset())
        scene.cut()
        scene.see("unroll", env.unroll([act(step) for step in range(3)]))


async def with_asyncio(scene: Scene) -> None:
    async with await d.make_async(scene.serve(Counter), {"start": 5}, restart=RESTART) as env:
        scene.see("reset", await env.reset())
        scene.see("step", await env.step(act(1)))
        scene.cut()
        scene.see("lost", await env.step(act(1)))
        scene.see("step", await env.step(act(1)))
        scene.cut()
        scene.see("reset", await env.reset())


def batched(scene: Scene, num_batches: int | None) -> None:
    settings = [{"start": 10}, {"start": 20}]
    with d.BatchedEnvironment(
        scene.serve(Counter), 2, settings, num_batches=num_batches, restart=RESTART
    ) as envs:
        envs.reset()
        envs.step(acts(1, 2))
        scene.cut()
        scene.see("lost", envs.step(acts(1, 2)))
        scene.see("step", envs.step(acts(1, 2)))
        scene.see("step", envs.step(acts(1, 2)))


def vector(scene: Scene, num_batches: int | None) -> None:
    with RemoteVectorEnv(
        scene.serve(Informed), 2, num_batches=num_batches, restart=RESTART
    ) as envs:
        envs.reset(seed=1)
        envs.step(moves(1))
        scene.cut()
        scene.see("lost", envs.step(moves(1)))
        scene.see("step", envs.step(moves(1)))
        scene.see("step", envs.step(moves(1)))


def in_gymnasium(scene: Scene) -> None:
    address = scene.serve(Informed)
    with gymnasium.make(REMOTE, address=address, restart=RESTART) as env:
        env.reset(seed=1)
        env.step(move(1))
        scene.cut()
        scene.see("lost", env.step(move(1)))
        scene.see("reset", env.reset(seed=2))
        scene.see("step", env.step(move(1)))


def in_pettingzoo(scene: Scene) -> None:
    with (
        serve(players) as server,
        contextlib.closing(RemoteParallelEnv(scene.tap(server.address), restart=RESTART)) as env,
    ):
        env.reset(seed=1)
        env.step(dict.fromkeys(env.agents, 1))
        scene.cut()
        # Otherwise its world may have to be destroyed more than once.
        assert settles(lambda: server.agent_count == 0)
        scene.see("lost", env.step(dict.fromkeys(env.agents, 1)))
        scene.see("reset", env.reset(seed=2))
        scene.see("step", env.step(dict.fromkeys(env.agents, 1)))


ON_STREAMS = {"": None, ", on streams": 0}

PLAYED: dict[str, Callable[[Scene], Any]] = {
    "make": made,
    "asyncio": with_asyncio,
    **{
        f"batched{where}": functools.partial(batched, num_batches=num_batches)
        for where, num_batches in ON_STREAMS.items()
    },
    **{
        f"vector{where}": functools.partial(vector, num_batches=num_batches)
        for where, num_batches in ON_STREAMS.items()
    },
    "Gymnasium": in_gymnasium,
    "PettingZoo": in_pettingzoo,
}

SCENARIOS: dict[str, Scenario] = {name: Scenario(play) for name, play in PLAYED.items()}
