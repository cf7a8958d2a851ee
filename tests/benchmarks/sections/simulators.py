"""A simulator of thousands of rows behind this package's server, against the same in process.

The simulator computes on one core for about 2 ms a step, in NumPy, torch or JAX. The rest of
a step's time is what serving adds: rows are packed, sent, and unpacked as arrays of the caller's
library.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.benchmarks.processes import serving
from tests.benchmarks.results import Section
from tests.benchmarks.rounds import timed
from tests.benchmarks.sections.serving import BATCHED, VECTOR
from tests.benchmarks.settings import Settings

IN_PROCESS = "in process"

_ROWS, _QUICK_ROWS, _FEATURES = 4096, 256, 64
_SECONDS = 0.002
_CALIBRATIONS = 10
_STEPS = 10
_MOST_OF_IN_PROCESS = 1.5


class Simulated(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Rows of float32 that a step changes elementwise, many times over.

    Args:
      library: "numpy", "torch" or "jax".
      rows: how many.
      repeats: how often a step changes all elements.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, library: str, rows: int, repeats: int):
        self.num_envs = rows
        box = functools.partial(gymnasium.spaces.Box, -np.inf, np.inf, dtype=np.float32)
        self.single_observation_space = box((_FEATURES,))
        self.observation_space = box((rows, _FEATURES))
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (rows, 1), np.float32)
        self._advance, self._array = _IN[library](repeats)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._state = self._array(np.linspace(-1, 1, self.num_envs * _FEATURES, dtype=np.float32))
        self._state = self._state.reshape(self.num_envs, _FEATURES)
        self._reward = self._array(np.ones(self.num_envs, np.float32))
        self._ended = self._array(np.zeros(self.num_envs, np.bool_))
        return self._state, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._state = self._advance(self._state, actions)
        return self._state, self._reward, self._ended, self._ended, {}


def _in_numpy(repeats: int) -> tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]:
    def advance(state: Any, actions: Any) -> Any:
        state = state + actions
        for _ in range(repeats):
            np.tanh(state, out=state)
        return state

    return advance, np.array


def _in_torch(repeats: int) -> tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]:
    import torch

    torch.set_num_threads(1)

    def advance(state: Any, actions: Any) -> Any:
        state = state + actions
        for _ in range(repeats):
            state.tanh_()
        return state

    return advance, torch.tensor


def _in_jax(repeats: int) -> tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def advance(state: Any, actions: Any) -> Any:
        return jax.lax.fori_loop(0, repeats, lambda _, state: jnp.tanh(state), state + actions)

    return lambda state, actions: advance(state, actions).block_until_ready(), jnp.asarray


_IN = {"numpy": _in_numpy, "torch": _in_torch, "jax": _in_jax}


def _stepped(env: Simulated, actions: Any) -> Callable[[], object]:
    env.reset()
    return lambda: env.step(actions)


def _repeats(library: str, rows: int) -> int:
    """Returns how often a step has to change all elements to take `_SECONDS` here."""
    repeats = 1
    while True:
        env = Simulated(library, rows, repeats)
        step = _stepped(env, env._array(np.zeros((rows, 1), np.float32)))
        step()
        times = []
        for _ in range(_CALIBRATIONS):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        if min(times) > _SECONDS / 2:
            return max(1, round(repeats * _SECONDS / min(times)))
        repeats *= 2


def simulators(settings: Settings) -> Section:
    """A step of a simulator with thousands of rows, served and in process."""
    rows, count = [], _QUICK_ROWS if settings.is_quick else _ROWS
    for library in _IN:
        if importlib.util.find_spec(library) is None:
            settings.tell(f"{library} is not installed, and is left out")
            continue
        repeats = _repeats(library, count)
        with contextlib.ExitStack() as stack:
            own = Simulated(library, count, repeats)
            actions = own._array(np.full((count, 1), 0.01, np.float32))
            contenders = {IN_PROCESS: timed(_stepped(own, actions), _STEPS)}
            factory = functools.partial(Simulated, library, count, repeats)
            address = stack.enter_context(serving(serve, factory))
            envs = stack.enter_context(BatchedEnvironment(address, count, arrays=library))
            envs.reset()
            step = functools.partial(envs.step, {"action": actions})
            contenders[BATCHED] = timed(step, _STEPS)
            address = stack.enter_context(serving(serve, factory))
            vector = RemoteVectorEnv(address, count)
            stack.callback(vector.close)
            vector.reset()
            step = functools.partial(vector.step, np.asarray(actions))
            contenders[VECTOR] = timed(step, _STEPS)
            name = f"{library}, {count} x {_FEATURES} float32"
            rows.append(settings.row(name, contenders, f"simulators, {name}"))
    targets = [
        row.at_most(name, IN_PROCESS, _MOST_OF_IN_PROCESS)
        for row in rows
        for name in (BATCHED, VECTOR)
    ]
    return Section("simulators", "A step of a simulator that computes for 2 ms", rows, targets)
