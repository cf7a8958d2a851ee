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
from tests.travelling.environments.of_dm_env import ENDLESS, Timed

_ROWS = 3
_PACKAGE = str(Path(dm_env_rpc_client.__file__).parent)


def counting(size: int | None = None) -> Timed:
    """Observes how many steps its sequence has had.

    Args:
      size: of its actions, of which one is a number if this is None.
    """
    numbers = specs.Array((), np.int64) if size is None else specs.Array((size,), np.float64)
    return Timed(
        0,
        ENDLESS,
        {"count": specs.Array((), np.int64)},
        lambda env: {"count": np.int64(env.steps)},
        {"value": numbers},
    )


_AGAIN_SECONDS = 1.0
"""Until another interrupt: Python ignores one that comes in a callback of a weak reference."""


_HANGS_SECONDS = 450
"""After which the program tells where its threads are, and ends: before the test gives up."""


class _Interrupt(BaseException):
    pass


class Way(NamedTuple):
    """A way to step environments that observe one number.

    Attributes:
      opened: makes one whose sequence has begun, from an address, settings and what `make` takes.
      step: takes a step, and returns what each row observes.
      rows: how many there are.
    """

    opened: Callable[..., Any]
    step: Callable[[Any], list[int]]
    rows: int = 1


class _KeptFuture:
    """A future that an interrupt leaves is asked once more."""

    def __init__(self, env: Any):
        self._env = env
        self._future: Any = None
        self.reset, self.close = env.reset, env.close

    def step(self) -> list[int]:
        if self._future is None:
            self._future = self._env.step_async(_ACTION)
        timestep = self._future.result()
        self._future = None
        return _shown(timestep)


_ACTION = {"value": 1}
_NONE: dict[str, Any] = {}
_ACTIONS = np.ones(_ROWS, np.int64)


def _shown(timestep: dm_env.TimeStep) -> list[int]:
    (numbers,) = timestep.observation.values()
    shown: list[int] = np.ravel(numbers).tolist()
    return shown


def _begun(env: Any) -> Any:
    env.reset()
    return env


def _one(wrap: Callable[[Any], Any] = lambda env: env) -> Callable[..., Any]:
    return lambda address, settings=_NONE, **how: _begun(wrap(make(address, settings, **how)))


def _many(kind: Any, num_batches: int | None, count: int = _ROWS) -> Callable[..., Any]:
    return lambda address, settings=_NONE, **how: _begun(
        kind(address, count, settings, num_batches=num_batches, **how)
    )


def _remote(address: str, settings: Any = _NONE, **how: Any) -> Any:
    name = "dm_env_rpc_client.gymnasium:Remote-v0"
    given = {"address": address, "create_world_settings": settings, **how}
    return _begun(gymnasium.make(name, disable_env_checker=True, **given).unwrapped)


def _step_rows(env: Any) -> list[int]:
    return _shown(env.step({"value": _ACTIONS}))


def _step_vector(env: Any) -> list[int]:
    shown: list[int] = env.step(_ACTIONS)[0].tolist()
    return shown


WAYS = {
    "make": Way(_one(), lambda env: _shown(env.step(_ACTION))),
    "rollout": Way(_one(), lambda env: _shown(next(env.rollout([_ACTION])))),
    "future": Way(_one(_KeptFuture), lambda env: env.step()),
    "GymnasiumEnv": Way(
        _one(lambda env: GymnasiumEnv(env, unwrap_single=True)), lambda env: [int(env.step(1)[0])]
    ),
    "Remote-v0": Way(_remote, lambda env: [int(env.step(1)[0])]),
    "batch": Way(_many(BatchedEnvironment, None), _step_rows, _ROWS),
    "batch of one": Way(
        _many(BatchedEnvironment, None, 1), lambda env: _shown(env.step({"value": [1]}))
    ),
    "streams": Way(_many(BatchedEnvironment, 0), _step_rows, _ROWS),
    "RemoteVectorEnv": Way(_many(RemoteVectorEnv, None), _step_vector, _ROWS),
    "RemoteVectorEnv of streams": Way(_many(RemoteVectorEnv, 0), _step_vector, _ROWS),
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
