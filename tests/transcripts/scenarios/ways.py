"""One environment of dm_env in each way to use it, and over each transport."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dm_env_rpc_client as d
from dm_env_rpc_client import recording
from dm_env_rpc_client.server import Server, serve
from tests.transcripts import environments
from tests.transcripts.environments import Counter
from tests.transcripts.scenarios.playing import WAYS, Way, act, see_steps
from tests.transcripts.scene import Scenario, Scene


def played(
    way: Way, serving: dict[str, Any], options: dict[str, Any], settings: dict[str, Any]
) -> Any:
    """A scenario: serves `Counter`, and plays in a way."""

    def play(scene: Scene) -> Any:
        return way(scene, scene.serve(Counter, **serving), settings, **options)

    return play


@contextmanager
def two_processes() -> Iterator[Server]:
    with serve(environments.hosted, processes=2) as server:
        yield server


def in_two_processes(way: Way) -> Any:
    def play(scene: Scene) -> Any:
        return way(scene, scene.tap(scene.shared.get(two_processes).address), {"kind": "counter"})

    return play


def recorded(scene: Scene, way: Way) -> None:
    path = scene.folder / "run.mcap"
    played = way(scene, scene.serve(Counter), {"start": 3}, record=path)
    if played is not None:
        asyncio.run(played)
    read_back(scene, path)


def read_back(scene: Scene, path: Any) -> None:
    run = recording.read(path)
    for episode in run.episodes:
        scene.see("episode", episode.end, episode.actions, episode.timesteps)


def replayed(scene: Scene) -> None:
    path = scene.folder / "run.mcap"
    with serve(Counter) as server, d.make(server.address, {"start": 3}, record=path) as env:
        env.reset()
        for step in range(4):
            env.step(act(step))
    replay = scene.stack.enter_context(recording.replay(path))
    with d.make(scene.tap(replay.address), {"start": 3}) as env:
        see_steps(scene, env, steps=4)
        with scene.fails("another action"):
            env.step(act(0))


def at_a_socket(scene: Scene) -> None:
    path = scene.folder / "server"
    server = scene.stack.enter_context(serve(Counter, f"unix:{path}"))
    address = scene.tap(server.address, f"unix:{scene.folder / 'relay'}")
    WAYS["make"](scene, address, {})


def with_settings(scene: Scene) -> None:
    settings = {"start": 2, "length": 1, "ends": "truncated"}
    with d.make(scene.serve(Counter), settings) as env:
        see_steps(scene, env, steps=3)
        scene.see("reset", env.reset({"start": 50, "length": 2}))
        see_steps(scene, env, steps=3)
        with scene.fails("a setting that is refused"):
            env.reset({"length": 0})
        with scene.fails("a setting that is unknown"):
            env.reset({"color": "red"})
        scene.see("step", env.step(act(1)))


def with_metadata(scene: Scene) -> None:
    address = scene.serve(Counter, token="a-secret")
    options: Any = {
        "token": "a-secret",
        "metadata": [("purpose", "tests"), ("more-bin", b"\x00\xff")],
    }
    with d.make(address, **options) as env:
        scene.see("reset", env.reset())
    with scene.fails("another token"):
        d.make(address, token="another")


TRANSPORTS = ("make", "asyncio", "futures", "batched on streams")

SCENARIOS: dict[str, Scenario] = {
    **{name: Scenario(played(way, {}, {}, {})) for name, way in WAYS.items()},
    **{
        f"{name}, its own discount": Scenario(played(WAYS[name], {}, {}, {"discount": 0.5}))
        for name in ("make", "batched", "vector on streams")
    },
    **{
        f"{name}, truncated": Scenario(played(WAYS[name], {}, {}, {"ends": "truncated"}))
        for name in ("make", "batched on streams", "vector")
    },
    **{
        f"{name}, grpcio's client": Scenario(played(WAYS[name], {}, {"transport": "grpc"}, {}))
        for name in TRANSPORTS
    },
    **{
        f"{name}, grpcio's server": Scenario(played(WAYS[name], {"transport": "grpc"}, {}, {}))
        for name in TRANSPORTS
    },
    **{
        f"{name}, two processes": Scenario(in_two_processes(WAYS[name]))
        for name in ("make", "asyncio", "batched", "vector", "plain batch")
    },
    **{
        f"{name}, recorded": Scenario(functools.partial(recorded, way=WAYS[name]))
        for name in ("make", "asyncio", "batched", "plain batch")
    },
    "a replay": Scenario(replayed),
    "a unix socket": Scenario(at_a_socket),
    "settings": Scenario(with_settings),
    "tokens and metadata": Scenario(with_metadata),
}
