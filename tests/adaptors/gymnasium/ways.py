"""The ways in which the values of a served environment reach a client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import DmEnvAdaptor, make
from dm_env_rpc_client.adaptors.gymnasium.from_dm_env import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.protocol.batches import ROW_ERRORS, row_errors
from dm_env_rpc_client.server import serve

ROWS = 2

NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


class Seen(NamedTuple):
    """What a client sees of the second row, or of the only environment."""

    observation: Any
    reward: float = 0.0
    info: Mapping[str, Any] = {}  # it is not changed


class Single:
    """`Remote-v0`."""

    def __init__(self, address: str):
        self._env = make_remote(address)
        self.close = self._env.close

    def reset(self) -> Seen:
        observation, info = self._env.reset()
        return Seen(observation, info=info)

    def step(self) -> Seen:
        observation, reward, _, _, info = self._env.step(self._env.action_space.sample())
        return Seen(observation, float(reward), info)


class Vector:
    """`RemoteVectorEnv`: in a batch, or over streams."""

    def __init__(self, address: str, **kwargs: Any):
        self._env = RemoteVectorEnv(address, ROWS, **kwargs)
        self.close = self._env.close

    def reset(self) -> Seen:
        observation, info = self._env.reset()
        return self._seen(observation, 0.0, info)

    def step(self) -> Seen:
        results = self._env.step(self._env.action_space.sample())
        return self._seen(results[0], results[1][1], results[4])

    def _seen(self, observation: Any, reward: Any, info: Any) -> Seen:
        return Seen(_row(observation), float(reward), {k: _row(v) for k, v in info.items()})


class Plain:
    """`make` of a batch."""

    def __init__(self, address: str, count: int = ROWS):
        self._count = count
        self._env: DmEnvAdaptor = make(address, {"num_envs": count}, unwrap_single=True)
        self.close = self._env.close

    def reset(self) -> Seen:
        return self._seen(self._env.reset())

    def step(self) -> Seen:
        spec = self._env.action_spec()
        if isinstance(spec, Mapping):
            action: Any = {n: np.zeros(each.shape, each.dtype) for n, each in spec.items()}
        else:
            action = np.zeros(spec.shape, spec.dtype)
        return self._seen(self._env.step(action))

    def _seen(self, timestep: Any) -> Seen:
        observation = dict(timestep.observation)
        for place, text in row_errors(observation.pop(ROW_ERRORS), self._count).items():
            raise RowFailedError(f"row {place}: {text}")
        observation.pop("step_type")
        if observation.keys() == {"observation"}:
            observation = observation["observation"]
        reward = 0.0 if timestep.reward is None else float(timestep.reward[-1])
        return Seen(_row(observation), reward)


class RowFailedError(Exception):
    """A row of a batch has raised an error."""


WAYS: dict[str, Callable[[str], Any]] = {
    "Remote-v0": Single,
    "streams": lambda address: Vector(address, num_batches=0),
    "batch": Vector,
    "batch, SAME_STEP": lambda address: Vector(address, autoreset_mode=SAME),
    "make of a batch": Plain,
}


@contextlib.contextmanager
def playing(way: str, environment: Callable[[], gymnasium.Env[Any, Any]]) -> Iterator[Any]:
    """Serves an environment, and has a client reach it in one of `WAYS`."""
    with serve(environment) as server:
        env = WAYS[way](server.address)
        try:
            yield env
        finally:
            env.close()


def _row(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _row(part) for name, part in values.items()}
    if isinstance(values, tuple) and isinstance(values[0], tuple | np.ndarray):
        return tuple(map(_row, values))
    return values[ROWS - 1]
