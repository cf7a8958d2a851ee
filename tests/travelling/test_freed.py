"""Arrays are freed with their last reference, and not when garbage is collected.

A cycle of references would keep the arrays of each step until then: a step of thousands of rows
would take new memory each time, and one on a GPU its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs

import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file
from dm_env_rpc_client.server import serve
from tests.support.collector import no_garbage_collection
from tests.support.scripted import settles
from tests.travelling.environments.of_dm_env import ENDLESS, Timed
from tests.travelling.environments.usual import Usual

_STEPS = 20
_SIZE = 1 << 14
_MOST_ALIVE = 8
"""Of the arrays of an environment: the last ones, in observation and info, of two rows."""

Refs: TypeAlias = "list[weakref.ref[Any]]"
Way: TypeAlias = Callable[[str, Path], Refs]

made: Refs = []
"""The observations that environments have made."""


def _new() -> np.ndarray:
    array = np.zeros(_SIZE, np.float32)
    made.append(weakref.ref(array))
    return array


def fresh() -> dm_env.Environment:
    """Each step has a new array."""
    spec = {"x": specs.Array((_SIZE,), np.float32, "x")}
    action = {"a": specs.DiscreteArray(2, name="a")}
    return Timed(0, ENDLESS, spec, lambda env: {"x": _new()}, action)


class FreshGym(Usual):
    """The same for Gymnasium."""

    observation_space = gymnasium.spaces.Box(0, 1, (_SIZE,), np.float32)

    def __init__(self) -> None:
        super().__init__(0)

    def observe(self) -> Any:
        return _new()

    def ends(self) -> tuple[bool, bool]:
        return False, False

    def inform(self) -> Any:
        return {"array": _new()}


def _stepped(step: Callable[[], Any]) -> Refs:
    """Steps; returns references to the observations."""
    found: Refs = []
    for _ in range(_STEPS):
        taken = step()
        if isinstance(taken, dm_env.TimeStep):
            (array,) = taken.observation.values()
        else:
            array = taken[0]
        found.append(weakref.ref(array))
        del taken, array
    return found


def _make(address: str, folder: Path, **given: Any) -> Refs:
    with dm_env_rpc_client.make(address, **given) as env:
        env.reset()
        return _stepped(lambda: env.step({"a": 1}))


def _recorded(address: str, folder: Path) -> Refs:
    return _make(address, folder, record=folder / "recording.mcap")


def _async(address: str, folder: Path) -> Refs:
    async def run() -> Refs:
        found: Refs = []
        env = await dm_env_rpc_client.make_async(address)
        await env.reset()
        for _ in range(_STEPS):
            found += [weakref.ref((await env.step({"a": 1})).observation["x"])]
        await env.close()
        return found

    return asyncio.run(run())


def _batched(address: str, folder: Path, num_batches: int) -> Refs:
    with BatchedEnvironment(address, 2, num_batches=num_batches) as envs:
        envs.reset()
        return _stepped(lambda: envs.step({"a": np.ones(2, np.int64)}))


def _vector(address: str, folder: Path, num_batches: int) -> Refs:
    with contextlib.closing(RemoteVectorEnv(address, 2, num_batches=num_batches)) as envs:
        envs.reset()
        return _stepped(lambda: envs.step(np.ones(2, np.int64)))


def _proxy(address: str, folder: Path) -> Refs:
    name = "dm_env_rpc_client.gymnasium:Remote-v0"
    env = gymnasium.make(name, address=address, disable_env_checker=True)
    with contextlib.closing(env):
        env.reset()
        return _stepped(lambda: env.step(1))


_OF_DM_ENV: dict[str, Way] = {
    "make": _make,
    "make, grpc": functools.partial(_make, transport="grpc"),
    "make, recorded": _recorded,
    "make_async": _async,
    "a batch": functools.partial(_batched, num_batches=1),
    "streams": functools.partial(_batched, num_batches=0),
    "a batch for Gymnasium": functools.partial(_vector, num_batches=1),
    "streams for Gymnasium": functools.partial(_vector, num_batches=0),
}
_OF_GYMNASIUM: dict[str, Way] = {
    "Remote-v0": _proxy,
    "a batch of Gymnasium's": functools.partial(_vector, num_batches=1),
    "streams of Gymnasium's": functools.partial(_vector, num_batches=0),
}
_OF_ONE_FILE: dict[str, Way] = {"one-file server": _make, "one-file server, Gymnasium": _proxy}


@pytest.fixture
def without_garbage_collection() -> Iterator[None]:
    made.clear()
    with no_garbage_collection():
        yield


def _alive(references: Refs) -> int:
    return sum(each() is not None for each in references)


@pytest.mark.usefixtures("without_garbage_collection")
@pytest.mark.parametrize("way", [*_OF_DM_ENV, *_OF_GYMNASIUM, *_OF_ONE_FILE])
def test_the_arrays_of_each_step_are_freed(way: str, tmp_path: Path) -> None:
    is_gymnasium = way in _OF_GYMNASIUM or way == "one-file server, Gymnasium"
    kind: Any = FreshGym if is_gymnasium else fresh
    host: Any = one_file.Server if way in _OF_ONE_FILE else serve
    play = {**_OF_DM_ENV, **_OF_GYMNASIUM, **_OF_ONE_FILE}[way]
    with host(kind) as server:
        taken = play(server.address, tmp_path)
        assert len(taken) == _STEPS
        assert len(made) >= _STEPS
        # An environment that a caller has closed may keep its last observation until then.
        assert settles(lambda: _alive(taken) <= 1), f"{_alive(taken)} of the client's are alive"
        assert settles(lambda: _alive(made) <= _MOST_ALIVE), f"{_alive(made)} of the server's are"
    assert settles(lambda: _alive(made) == 0), f"{_alive(made)} are alive after the end"
