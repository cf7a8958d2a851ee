"""Environments and a policy that fail where they are told to. Actors import this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnvironment
from dm_env_rpc_client.distributed import PolicyStep
from tests.reliability.processes.failing_values import Told, Trap, spring

STEPS = 3
"""The steps of a batch."""


class Orders(NamedTuple):
    """The weights of a policy: what to do in the next batch.

    Attributes:
      ticket: the action of the first environment in the first step; others follow.
      codes: where environments fail, [STEPS, N]; see `failing_values.place_of`.
      place: where the policy or what it returns fails.
      kind: the error of that.
    """

    ticket: int
    codes: npt.NDArray[np.int64]
    place: str
    kind: int


def told(index: int) -> dm_env.Environment:
    """An environment in this process."""
    return GymnasiumEnvironment(Told(index))


def observed(timestep: dm_env.TimeStep) -> npt.NDArray[np.int64]:
    """The only observation, which remote environments have under a name."""
    found: Any = timestep.observation
    array: npt.NDArray[np.int64] = found["observation"] if isinstance(found, Mapping) else found
    return array


class Obeying:
    """A policy that acts as its weights say."""

    def __init__(self) -> None:
        self._step = 0
        self._ticket = -1

    def __call__(
        self, timestep: dm_env.TimeStep, weights: Orders, random: Sequence[np.random.Generator]
    ) -> PolicyStep:
        if weights.ticket != self._ticket:
            self._step, self._ticket = 0, weights.ticket
        rows = observed(timestep)[:, 0]
        total = weights.codes.shape[1]
        tickets = weights.ticket + self._step * total + rows
        actions = np.stack([tickets, weights.codes[self._step, rows]], axis=1)
        is_last = self._step == STEPS - 1
        self._step += 1
        extras = np.full(len(rows), None)
        if is_last and weights.place == "policy":
            spring(weights.kind)
        if is_last and weights.place in ("dump", "load"):
            extras[0] = Trap(weights.place, weights.kind)
        own = {"action": actions} if isinstance(timestep.observation, Mapping) else actions
        return PolicyStep(own, extras)
