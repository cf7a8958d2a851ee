"""Environments in batches behind this package's server, against Gymnasium's AsyncVectorEnv.

Both have the same environments in other processes, and both give infos and begin episodes by
themselves. One environment is compared as its users would have it: Gymnasium's interface with
Gymnasium's interface.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.benchmarks.processes import serving
from tests.benchmarks.results import Section
from tests.benchmarks.rounds import Contender, timed
from tests.benchmarks.sections.serving import ASYNC, VECTOR, CheapGym, vector_step
from tests.benchmarks.settings import Settings

CART_POLE = "CartPole"
SAME_STEP = "CartPole, SAME_STEP"
PROXY = "Remote-v0"
SYNC = "SyncVectorEnv, in process"

_SHORT = {"scalar": "float32 [1]", "uint8": "uint8 84x84x4", "float32": "float32 84x84x4"}
_MOST_OF_ASYNC = {
    (16, "scalar"): 0.15,
    (64, "scalar"): 0.04,
    (256, "scalar"): 0.02,
    (16, "uint8"): 0.25,
    (16, "float32"): 0.5,
    (16, CART_POLE): 0.3,
    (64, CART_POLE): 0.25,
    (64, SAME_STEP): 0.25,
}
"""What a step of so many environments may cost, as part of AsyncVectorEnv's."""

_QUICK = ((16, "scalar"), (4, CART_POLE))
_MOST_OF_ONE = 1.0
_TIMES = "times the cost of"
_STEPS = 2560
"""Environment steps of one turn, at most `_MOST_STEPS` of all environments."""

_MOST_STEPS = 40


def _world(name: str) -> gymnasium.Env[Any, Any]:
    if name in _SHORT:
        return CheapGym(_SHORT[name])
    return gymnasium.make("CartPole-v1")


def _proxy(stack: contextlib.ExitStack, address: str, name: str) -> Contender:
    remote = "dm_env_rpc_client.gymnasium:Remote-v0"
    env: Any = gymnasium.make(remote, address=address, create_world_settings={"name": name})
    stack.callback(env.close)
    env.reset(seed=0)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset()

    return timed(step, _MOST_STEPS)


def _contenders(
    stack: contextlib.ExitStack, address: str, count: int, name: str
) -> dict[str, Contender]:
    mode = AutoresetMode.SAME_STEP if name == SAME_STEP else AutoresetMode.NEXT_STEP
    makers = [functools.partial(_world, name)] * count
    steps = max(2, min(_MOST_STEPS, _STEPS // count))
    every: dict[str, gymnasium.vector.VectorEnv[Any, Any, Any]] = {
        # Forks of a process that uses grpcio may crash.
        ASYNC: AsyncVectorEnv(makers, shared_memory=True, context="spawn", autoreset_mode=mode),
        VECTOR: RemoteVectorEnv(address, count, {"name": name}, autoreset_mode=mode),
        SYNC: SyncVectorEnv(makers, autoreset_mode=mode),
    }
    return {
        who: timed(vector_step(stack, envs, seed=0), steps, count) for who, envs in every.items()
    }


def batched(settings: Settings) -> Section:
    """Batches of environments of Gymnasium, against AsyncVectorEnv."""
    rows, targets = [], []
    for count, name in _QUICK if settings.is_quick else _MOST_OF_ASYNC:
        title = f"{count} {name}"
        with contextlib.ExitStack() as stack:
            address = stack.enter_context(serving(serve, _world))
            rows.append(settings.row(title, _contenders(stack, address, count, name)))
        limit = _MOST_OF_ASYNC.get((count, name), _MOST_OF_ONE)
        targets.append(rows[-1].at_most(VECTOR, ASYNC, limit, _TIMES))
    title = "A step of one environment of several, in another process"
    return Section("batched", title, rows, targets)


def batched_single(settings: Settings) -> Section:
    """One environment of Gymnasium, against AsyncVectorEnv with one."""
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(serving(serve, _world))
        contenders = _contenders(stack, address, 1, CART_POLE)
        contenders[PROXY] = _proxy(stack, address, CART_POLE)
        row = settings.row(CART_POLE, contenders, f"1 {CART_POLE}")
    targets = [row.at_most(name, ASYNC, _MOST_OF_ONE, _TIMES) for name in (VECTOR, PROXY)]
    return Section("batched-single", "A step of an environment in another process", [row], targets)
