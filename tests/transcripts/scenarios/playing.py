"""What scenarios do with `Counter` and with other environments, in each way to use them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import dm_env_rpc_client as d
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from tests.transcripts.scene import Scene

STEPS = 4

Way = Callable[..., Any]
"""Plays at an address, with settings for the world and options of `make`."""


def act(step: int) -> dict[str, Any]:
    """An action of `Counter`."""
    return {
        "add": step % 7 - 3,
        "wish": np.array([step / 2, -step], np.float32),
        "talk": {"say": "ab"[: step % 3]},
    }


def acts(step: int, rows: int) -> dict[str, Any]:
    """The same for rows."""
    return {
        "add": np.arange(rows) + step % 5 - 3,
        "wish": np.array([[step / 2, -row] for row in range(rows)], np.float32),
        "talk": {"say": np.array([f"s{row}"[: step % 3] for row in range(rows)], object)},
    }


def nothing(env: Any) -> Any:
    """The least action of each spec."""
    flat = d.flatten_dict(env.action_spec(), ".")
    return {name: spec.generate_value() for name, spec in flat.items()}


def see_steps(
    scene: Scene, env: Any, actions: Callable[[int], Any] = act, steps: int = STEPS
) -> None:
    """Resets and steps, and writes down the TimeSteps."""
    scene.see("reset", env.reset())
    for step in range(steps):
        scene.see("step", env.step(actions(step)))


def made(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    with d.make(address, settings, **options) as env:
        scene.see("specs", repr(env.action_spec()), repr(env.observation_spec()))
        see_steps(scene, env)
        scene.see("reset", env.reset())


def flat(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    with d.make(address, settings, nested_tensors=False, **options) as env:
        see_steps(scene, env, lambda step: d.flatten_dict(act(step), "."))


def asked(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    with d.make(address, settings, requested_observations=["zone.*", "door"], **options) as env:
        see_steps(scene, env)


def sent_ahead(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    with d.make(address, settings, **options) as env:
        env.reset()
        futures = [env.submit_step(act(step)) for step in range(STEPS)]
        for future in futures:
            scene.see("step", future.result(60))


def rolled_out(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    with d.make(address, settings, **options) as env:
        for timestep in env.rollout(map(act, range(STEPS)), ahead=2):
            scene.see("step", timestep)


def unrolled(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    with d.make(address, settings, **options) as env:
        scene.see("unroll", env.unroll([act(step) for step in range(STEPS)]))


async def with_asyncio(
    scene: Scene, address: str, settings: Mapping[str, Any], **options: Any
) -> None:
    async with await d.make_async(address, settings, **options) as env:
        scene.see("reset", await env.reset())
        for step in range(STEPS):
            scene.see("step", await env.step(act(step)))
        scene.see("reset", await env.reset())


async def ahead_with_asyncio(
    scene: Scene, address: str, settings: Mapping[str, Any], **options: Any
) -> None:
    async with await d.make_async(address, settings, **options) as env:
        await env.reset()
        steps = [asyncio.ensure_future(env.step(act(step))) for step in range(2)]
        for timestep in await asyncio.gather(*steps):
            scene.see("step", timestep)
        scene.see("unroll", await env.unroll([act(step) for step in range(STEPS)], ahead=2))


def _each(settings: Mapping[str, Any], rows: int) -> list[dict[str, Any]]:
    return [{**settings, "start": 10 * row, "length": row + 2} for row in range(rows)]


def batched(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    with d.BatchedEnvironment(address, 3, _each(settings, 3), **options) as envs:
        scene.see("specs", repr(envs.observation_spec()))
        see_steps(scene, envs, lambda step: acts(step, 3))
        scene.see("reset", envs.reset())


def on_streams(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    batched(scene, address, settings, num_batches=0, **options)


def vector(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    def flattened(step: int) -> dict[str, Any]:
        return d.flatten_dict(acts(step, 2), ".")

    with RemoteVectorEnv(address, 2, _each(settings, 2), **options) as envs:
        scene.see("spaces", repr(envs.single_observation_space), repr(envs.single_action_space))
        with scene.fails("reset"):
            scene.see("reset", envs.reset(seed=None))
        for step in range(STEPS):
            scene.see("step", envs.step(flattened(step)))


def vector_on_streams(
    scene: Scene, address: str, settings: Mapping[str, Any], **options: Any
) -> None:
    vector(scene, address, settings, num_batches=0, **options)


def plain_batch(scene: Scene, address: str, settings: Mapping[str, Any], **options: Any) -> None:
    of_rows = {"num_envs": 2, "rows.start": [1, 100], "length": 2}
    with d.make(address, {**settings, **of_rows}, **options) as env:
        see_steps(scene, env, lambda step: acts(step, 2))


WAYS: dict[str, Way] = {
    "make": made,
    "flat names": flat,
    "some observations": asked,
    "futures": sent_ahead,
    "rollout": rolled_out,
    "unroll": unrolled,
    "asyncio": with_asyncio,
    "asyncio ahead": ahead_with_asyncio,
    "batched": batched,
    "batched on streams": on_streams,
    "vector": vector,
    "vector on streams": vector_on_streams,
    "plain batch": plain_batch,
}
