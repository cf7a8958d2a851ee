"""What the simulators take and return in this process, and servers of them in other processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tests.simulators import factories
from tests.support.programs import ROOT
from tests.support.stopwatch import patience


class Rows(NamedTuple):
    """A simulator that steps a batch.

    Attributes:
      needs: its package.
      factory: the name of the function of `factories` that makes it.
      library: the library of the arrays that it takes.
      mode: when its rows begin their next episodes.
      has_four: whether its steps return four values.
      form: what a server says of it after a step.
    """

    needs: str
    factory: str
    library: str
    mode: str
    form: str
    has_four: bool = False


class Single(NamedTuple):
    """A simulator that steps one environment; see `Rows`."""

    needs: str
    factory: str


ROWS = {
    each.factory: each
    for each in (
        Rows("gymnax", "gymnax_cart_pole", "jax", "SAME_STEP",
             "GymnaxToVectorGymWrapper: arrays jax on cpu:0, 5 values"),
        Rows("brax", "brax_pendulum", "jax", "SAME_STEP",
             "VectorGymWrapper: arrays jax on cpu:0, 4 values", has_four=True),
        Rows("vmas", "vmas_rows", "numpy", "DISABLED", "Environment: arrays numpy, 5 values"),
        Rows("vmas", "vmas_rows_of_torch", "torch", "DISABLED",
             "Environment: arrays torch on cpu, 5 values"),
    )
}  # fmt: skip

SINGLES = {
    each.factory: each
    for each in (
        Single("jumanji", "jumanji_dm_env"),
        Single("jumanji", "jumanji_gymnasium"),
        Single("vmas", "vmas_single"),
    )
}


@contextlib.contextmanager
def served(factory: str, *options: str) -> Iterator[str]:
    """A server in a process of its own; yields its address."""
    command = [
        sys.executable, "-W", "ignore", "-m", "dm_env_rpc_client", "serve",
        f"{factories.__name__}:{factory}", "--address", "localhost:0", "--json", "--no-try",
        *options,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait(patience(60))


def plain(value: Any) -> Any:
    """Returns a value in which arrays are copies of NumPy's, and named parts are in dicts."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return np.array(value) if hasattr(value, "__array__") else value


def sampled(space: Any, random: np.random.Generator) -> Any:
    """Draws an element of a space of Gymnasium, or of the older gym."""
    if hasattr(space, "spaces"):
        return tuple(sampled(part, random) for part in space.spaces)
    if hasattr(space, "nvec"):
        return random.integers(0, space.nvec)
    if hasattr(space, "n"):
        return int(random.integers(space.n))
    return random.uniform(space.low, space.high).astype(space.dtype)


class Returned(NamedTuple):
    """What a step of a batch returns, or of one environment; a reset returns only two of them."""

    observation: Any
    reward: Any = None
    terminated: Any = None
    truncated: Any = None
    infos: Any = None


class InProcess:
    """A batch in this process, whose results have Gymnasium's form and NumPy's arrays."""

    def __init__(self, kind: Rows, num_envs: int = factories.ROWS):
        self._env = getattr(factories, kind.factory)(num_envs)
        self._kind = kind
        self.action_space = self._env.action_space

    def reset(self, seed: int | None = None) -> Returned:
        if not self._kind.has_four:
            observation, infos = self._env.reset(seed=seed)
            return Returned(_of_space(plain(observation)), infos=plain(infos))
        if seed is not None:
            self._env.seed(seed)
        return Returned(plain(self._env.reset()), infos={})

    def step(self, action: Any) -> Returned:
        returned = plain(self._env.step(self._given(action)))
        if self._kind.has_four:
            observation, reward, done, infos = returned
            truncated = infos["truncation"].astype(bool)
            terminated = done.astype(bool) & ~truncated
        else:
            observation, reward, terminated, truncated, infos = returned
        # VMAS has a list of the rewards of each agent.
        reward = (reward[0] if isinstance(reward, list) else reward).astype(np.float64)
        return Returned(_of_space(observation), reward, terminated, truncated, infos)

    def _given(self, action: Any) -> Any:
        if self._kind.library == "numpy":
            return action
        if isinstance(action, tuple):
            return tuple(map(self._given, action))
        if self._kind.library == "jax":
            import jax

            return jax.numpy.asarray(action)
        import torch

        return torch.tensor(action)


def _of_space(observation: Any) -> Any:
    """VMAS has lists for the elements of a Tuple space."""
    return tuple(observation) if isinstance(observation, list) else observation


@functools.cache
def episodes(factory: str, steps: int) -> tuple[list[Any], list[Returned]]:
    """Steps a batch in this process.

    Returns:
      The actions, None for a reset, and what each of them returned; the first is a reset with a
      seed. Where the rows do not begin their episodes themselves, a reset does once all have ended.
    """
    kind = ROWS[factory]
    env = InProcess(kind)
    random = np.random.default_rng(3)
    actions: list[Any] = [None]
    results = [env.reset(factories.SEED)]
    for _ in range(steps):
        last = results[-1]
        ended = last.terminated is not None and bool((last.terminated | last.truncated).all())
        if ended and kind.mode == "DISABLED":
            actions.append(None)
            results.append(env.reset())
        else:
            actions.append(sampled(env.action_space, random))
            results.append(env.step(actions[-1]))
    return actions, results
