"""Rollouts whose environments and policy fail where they are told to. Actors import this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client import make
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnvironment
from dm_env_rpc_client.distributed import LocalRollouts, PolicyStep, RemoteEnvironments, Rollouts
from tests.reliability.processes.failing_values import ROWS, Answer, Told, Trap, place_of

BEGIN = [(-1, 0)] * ROWS
"""Actions that are no steps to `Told`."""

TRAPS = {"pickled": "dump", "unpickled": "load"}
"""Where what the policy returns fails."""


def told(index: int) -> dm_env.Environment:
    """An environment in this process."""
    return GymnasiumEnvironment(Told(index))


def observed(timestep: dm_env.TimeStep) -> Any:
    """The only observation, which remote environments have under a name."""
    found: Any = timestep.observation
    return found["observation"] if isinstance(found, Mapping) else found


def obey(
    timestep: dm_env.TimeStep, weights: Any, random: Sequence[np.random.Generator]
) -> PolicyStep:
    """A policy whose weights are the actions of all environments, with where they fail."""
    rows = observed(timestep)[:, 0]
    actions = np.array([np.asarray(weights[row], np.int64) for row in rows])
    extras = np.full(len(rows), None)
    for index, code in enumerate(actions[:, 1]):
        place, kind = place_of(code)
        if place in TRAPS:
            extras[index] = Trap(TRAPS[place], kind)
    is_named = isinstance(timestep.observation, Mapping)
    return PolicyStep({"action": actions} if is_named else actions, extras)


def taken(rollouts: Rollouts, actions: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Any]:
    """Collects a batch of one step; returns observations, rewards, and what the former say."""
    rollouts.update(actions)
    steps = rollouts.collect(1).timesteps
    before, observations = observed(steps)
    # Those of the step before, in the same life.
    is_step = observations[:, 3:] >= 0
    assert (observations[:, :2] == before[:, :2]).all()
    assert (observations[:, 2:3] == before[:, 2:3] + is_step).all()
    return observations, steps.reward[1], [Answer(*map(int, row))._asdict() for row in observations]


def of_each(address: str) -> Any:
    """What makes one of the environments of a server."""
    return lambda index: make(address, {"index": index})


def of_batches(address: str) -> Any:
    return RemoteEnvironments(address, lambda index: {"index": index})


def local(made: Any) -> Rollouts:
    return LocalRollouts(made, obey, 2, ROWS // 2)
