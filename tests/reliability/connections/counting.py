"""An environment that counts its steps, and a program that interrupts the client of it.

A count that is missing between two observations is an answer that was lost.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

import dm_env_rpc_client
from dm_env_rpc_client import DmEnvRpcClientError, make
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv
from dm_env_rpc_client.adaptors.vector import BatchedEnvironment, RemoteVectorEnv

_ROWS = 3
_PACKAGE = str(Path(dm_env_rpc_client.__file__).parent)


class Counting(dm_env.Environment):
    """Observes how many steps and resets there were."""

    def __init__(self) -> None:
        self._count = 0

    def action_spec(self) -> dict[str, specs.Array]:
        return {"value": specs.Array((), np.int64, "value")}

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"count": specs.Array((), np.int64, "count")}

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._observe())

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.transition(1.0, self._observe())

    def _observe(self) -> dict[str, Any]:
        self._count += 1
        return {"count": np.int64(self._count)}


_AGAIN_SECONDS = 1.0
"""Until another interrupt: Python ignores one that comes in a callback of a weak reference."""


_HANGS_SECONDS = 450
"""After which the program tells where its threads are, and ends: before the test gives up."""


class _Interrupt(BaseException):
    pass


class Way(NamedTuple):
    """How the environment is opened, and what a step returns: the count of each row."""

    opened: Callable[[str], Any]
    step: Callable[[Any], Any]


class _KeptFuture:
    """A future that an interrupt leaves is asked once more."""

    def __init__(self, address: str):
        self._env = make(address)
        self._future: Any = None

    def step(self) -> int:
        if self._future is None:
            self._future = self._env.step_async({"value": 1})
        timestep = self._future.result()
        self._future = None
        return int(timestep.observation["count"])

    def close(self) -> None:
        self._env.close()


def _begun(env: Any) -> Any:
    env.reset()
    return env


def _remote(address: str) -> Any:
    name = "dm_env_rpc_client.gymnasium:Remote-v0"
    return _begun(gymnasium.make(name, address=address, disable_env_checker=True).unwrapped)


def _batched(address: str, num_batches: int | None) -> Any:
    return BatchedEnvironment(address, _ROWS, num_batches=num_batches)


def _step_batch(env: Any) -> Any:
    return env.step({"value": [1] * _ROWS}).observation["count"].tolist()


def _step_vector(env: Any) -> Any:
    return env.step(np.ones(_ROWS, np.int64))[0].tolist()


WAYS = {
    "make": Way(make, lambda env: [int(env.step({"value": 1}).observation["count"])]),
    "rollout": Way(
        make,
        lambda env: [int(next(env.rollout([{"value": 1}])).observation["count"])],
    ),
    "future": Way(_KeptFuture, lambda env: [env.step()]),
    "GymnasiumEnv": Way(
        lambda address: _begun(GymnasiumEnv(make(address), unwrap_single=True)),
        lambda env: [int(env.step(1)[0])],
    ),
    "batch": Way(lambda address: _batched(address, None), _step_batch),
    "batch of one": Way(
        lambda address: BatchedEnvironment(address, 1),
        lambda env: env.step({"value": [1]}).observation["count"].tolist(),
    ),
    "streams": Way(lambda address: _batched(address, 0), _step_batch),
    "Remote-v0": Way(_remote, lambda env: [int(env.step(1)[0])]),
    "RemoteVectorEnv": Way(lambda address: _begun(RemoteVectorEnv(address, _ROWS)), _step_vector),
    "RemoteVectorEnv of streams": Way(
        lambda address: _begun(RemoteVectorEnv(address, _ROWS, num_batches=0)),
        _step_vector,
    ),
}


def interrupt_steps(way: Way, address: str, rounds: int) -> tuple[int, int, int]:
    """Interrupts steps at random points in the package.

    Returns:
      How often the next step skipped a count, failed, and had the count that follows.
    """
    chance = random.Random(0)
    lost = failed = followed = 0
    is_wanted = False

    def interrupt(_: int, frame: FrameType | None) -> None:
        if not is_wanted:
            return  # A handler may be called when its timer has been stopped already.
        while frame is not None:
            if frame.f_code.co_filename.startswith(_PACKAGE):
                raise _Interrupt
            frame = frame.f_back
        # The caller has what was answered.
        signal.setitimer(signal.ITIMER_REAL, 2e-4, _AGAIN_SECONDS)

    signal.signal(signal.SIGALRM, interrupt)
    env, counts = way.opened(address), None
    while lost + failed + followed < rounds:
        before = counts
        is_wanted = True
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.002 + 1e-5, _AGAIN_SECONDS)
            while True:
                before = counts = way.step(env)
        except (_Interrupt, DmEnvRpcClientError):
            pass
        is_wanted = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            counts = way.step(env)
        except DmEnvRpcClientError:
            failed += 1
            env.close()
            env, counts = way.opened(address), None
            continue
        if before is not None and counts != [count + 1 for count in before]:
            lost += 1
        else:
            followed += 1
    env.close()
    return lost, failed, followed


if __name__ == "__main__":
    from tests.support.both_transports import obey

    obey()
    faulthandler.dump_traceback_later(_HANGS_SECONDS, exit=True)
    print(*interrupt_steps(WAYS[sys.argv[1]], sys.argv[2], int(sys.argv[3])))
