"""A server that breaks the rules for batches: every client says what is wrong, and in which row."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import BatchedEnvironment, make, make_async
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.environment.many.one_row import OneRow
from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.recording import Recorder, read
from dm_env_rpc_client.server import Server, serve
from tests.protocol.lies import COUNT, LIES, Lie, Values
from tests.travelling.environments.of_dm_env import Timed


class Liar(Timed):
    """A batch whose third step is a lie; the steps before are MID."""

    def __init__(self, num_envs: int, lie: str, lies: Mapping[str, Lie], mode: str):
        number = specs.Array((num_envs,), np.float64)
        super().__init__(
            0,
            spec={
                "value": specs.Array((num_envs,), np.float32, "value"),
                batches.STEP_TYPE: specs.Array((num_envs,), np.uint8, batches.STEP_TYPE),
                batches.ROW_ERRORS: specs.StringArray((), name=batches.ROW_ERRORS),
            },
            action={"move": specs.BoundedArray((num_envs,), np.int32, 0, 3, "move")},
            reward=number.replace(name="reward"),
            discount=number.replace(name="discount"),
        )
        self._count, self._lie = num_envs, lies[lie]
        self.properties = {
            batches.WORLD_NUM_ENVS: lambda: num_envs,
            batches.WORLD_AUTORESET_MODE: lambda: mode,
        }

    def _told(self) -> dm_env.TimeStep:
        kind = dm_env.StepType.FIRST if self.steps == 0 else dm_env.StepType.MID
        values: Values = {
            "value": np.full(self._count, self.steps, np.float32),
            batches.STEP_TYPE: np.full(self._count, kind, np.uint8),
            batches.ROW_ERRORS: "",
        }
        if self.steps == 0:
            return dm_env.restart(values)
        values["reward"] = np.full(self._count, float(self.steps))
        values["discount"] = np.ones(self._count)
        if self.steps == 3:
            self._lie(values)
        reward, discount = values.pop("reward"), values.pop("discount")
        return dm_env.transition(reward, values, discount)


def liars(lies: Mapping[str, Lie]) -> Callable[..., Liar]:
    """Returns a factory of liars, for `serve`."""

    def liar(num_envs: int = COUNT, lie: str = "none", autoreset_mode: str = "NEXT_STEP") -> Liar:
        return Liar(num_envs, lie, lies, autoreset_mode)

    return liar


MOVES = np.zeros(COUNT, np.int32)

Way = Callable[[str, str, Path], Iterator[Any]]
"""Takes an address, the lie and a folder; yields after each of three steps."""


def _steps(step: Callable[[], Any]) -> Iterator[Any]:
    yield step()
    yield step()
    yield step()


def by_make(address: str, lie: str, path: Path) -> Iterator[Any]:
    with make(address, {"num_envs": COUNT, "lie": lie}) as env:
        env.reset()
        yield from _steps(lambda: env.step({"move": MOVES}))


def by_unroll(address: str, lie: str, path: Path) -> Iterator[Any]:
    """Steps that are sent ahead; those in the middle of a sequence are read together."""
    with make(address, {"num_envs": COUNT, "lie": lie}) as env:
        env.reset()
        yield env.step({"move": MOVES})
        yield env.step({"move": MOVES})
        yield env.unroll([{"move": MOVES}, {"move": MOVES}])


def by_asyncio(address: str, lie: str, path: Path) -> Iterator[Any]:
    async def third() -> Any:
        async with await make_async(address, {"num_envs": COUNT, "lie": lie}) as env:
            await env.reset()
            await env.step({"move": MOVES})
            await env.step({"move": MOVES})
            return await env.step({"move": MOVES})

    yield from (None, None)
    yield asyncio.run(third())


def by_batched_environment(address: str, lie: str, path: Path) -> Iterator[Any]:
    with BatchedEnvironment(address, COUNT, {"lie": lie}) as env:
        env.reset()
        yield from _steps(lambda: env.step({"move": MOVES}))


def by_send(address: str, lie: str, path: Path) -> Iterator[Any]:
    with BatchedEnvironment(address, COUNT, {"lie": lie}) as env:
        env.reset()

        def step() -> Any:
            env.send({"move": MOVES})
            return env.recv(COUNT)

        yield from _steps(step)


def by_vector_env(
    address: str, lie: str, path: Path, autoreset_mode: str | None = None
) -> Iterator[Any]:
    envs = RemoteVectorEnv(address, COUNT, {"lie": lie}, autoreset_mode=autoreset_mode)
    try:
        envs.reset()
        yield from _steps(lambda: envs.step(MOVES))
    finally:
        envs.close()


def by_one_row(address: str, lie: str, path: Path) -> Iterator[Any]:
    with make(address, {"num_envs": COUNT, "lie": lie}) as env:
        row = OneRow(env, 2)
        row.reset()
        yield from _steps(lambda: row.step({"move": 0}))


def by_recording(address: str, lie: str, path: Path) -> Iterator[Any]:
    with (
        Recorder(path / "lie.rec") as recorder,
        make(address, {"num_envs": COUNT, "lie": lie}, record=recorder) as env,
    ):
        env.reset()
        for _ in range(2):
            yield env.step({"move": MOVES})
        with contextlib.suppress(DmEnvRpcClientError):
            env.step({"move": MOVES})
    yield read(path / "lie.rec").episodes


WAYS: dict[str, Way] = {
    "make": by_make,
    "unroll": by_unroll,
    "asyncio": by_asyncio,
    "BatchedEnvironment": by_batched_environment,
    "send and recv": by_send,
    "RemoteVectorEnv": by_vector_env,
    "RemoteVectorEnv with SAME_STEP": functools.partial(by_vector_env, autoreset_mode="SameStep"),
    "one row": by_one_row,
    "recording": by_recording,
}


TRANSPORTS = ["http2"]

EACH_KIND = ["type 7", "nan in a LAST row", "row -1", "row N", "many rows", "a number"]


@pytest.fixture(scope="module")
def liar() -> Iterator[Server]:
    with serve(liars({"none": lambda values: None, **{k: v[0] for k, v in LIES.items()}})) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lie", EACH_KIND)
def test_what_breaks_the_rules_is_a_public_error_that_names_it(
    liar: Server, lie: str, way: str, tmp_path: Path
) -> None:
    steps = WAYS[way](liar.address, lie, tmp_path)
    next(steps), next(steps)
    began = time.process_time()
    with pytest.raises(DmEnvRpcClientError) as caught:
        next(steps)
    # A server that sends a lot takes little time. (The server is in this process, too.)
    assert time.process_time() - began < 2.0
    assert LIES[lie][1] in str(caught.value)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_keeps_the_rules_is_taken(liar: Server, way: str, tmp_path: Path) -> None:
    assert len(list(WAYS[way](liar.address, "none", tmp_path))) == 3
