"""What the last step of each of N environments is for Gymnasium's vector environments.

`VectorRows` and `WorldRows` take the answers: one TimeStep, the MID steps of several streams, or
the rows of a batched world.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium.extras import RowInfo
from dm_env_rpc_client.protocol.batches import next_kind
from dm_env_rpc_client.protocol.mid_steps import MidSteps

__all__ = ["Array", "EpisodeRows", "FirstSteps", "Results"]

Array: TypeAlias = npt.NDArray[Any]
Results: TypeAlias = tuple[Any, Array, Array, Array, dict[str, Any]]
"""What `step` of a vector environment returns."""


class EpisodeRows(abc.ABC):
    """The rows.

    Args:
      count: the number of rows.
      mode: when episodes begin.

    Attributes:
      count: the number of rows.
      has_begun: whether an episode has begun, bool [N].
      has_to_begin: whether the step that ends an episode begins the next one.
      observations: returns the observations of some environments; None for all.
    """

    observations: Callable[[Array | None], Any]

    def __init__(self, count: int, mode: AutoresetMode):
        self.count = count
        self.has_to_begin = next_kind(mode.name) is dm_env.StepType.MID
        self.has_begun = np.zeros(count, np.bool_)
        self._rewards = np.zeros(count, np.float64)
        self._terminations = np.zeros(count, np.bool_)
        self._truncations = np.zeros(count, np.bool_)
        # How many have put a MID step since the last step began.
        self._mid_count = 0
        # Rows whose episode has ended, and whose next one begins in the same step.
        self._restarting: set[int] = set()

    @property
    def ended(self) -> Sequence[int]:
        """The rows whose next episode has to be begun."""
        return sorted(self._restarting)

    def begin(self, ids: Sequence[int]) -> bool:
        """Begins a step of some environments, or their next episodes.

        Returns:
          Whether episodes are known to be running in all environments.
        """
        was_mid, self._mid_count = self._mid_count == self.count, 0
        return was_mid

    def forget_restarts(self, ids: Iterable[int]) -> None:
        """Takes note that no episodes begin in environments that have ended one."""
        if self._restarting:
            self._restarting.difference_update(ids)

    def results(self, ids: Array | None) -> Results:
        """Returns what `step` returns for some environments; None for all."""
        return (*self.arrays(ids), self.infos(ids))

    def arrays(self, ids: Array | None) -> tuple[Any, Array, Array, Array]:
        """Returns the same without the infos."""
        rewards, terminations, truncations = self._rewards, self._terminations, self._truncations
        if ids is None:
            rewards, terminations = rewards.copy(), terminations.copy()
            return self.observations(None), rewards, terminations, truncations.copy()
        # Indices copy what they select.
        return self.observations(ids), rewards[ids], terminations[ids], truncations[ids]

    @abc.abstractmethod
    def infos(self, ids: Array | None) -> dict[str, Any]:
        """Returns the infos of the last step, stacked, of some environments; None for all."""

    @abc.abstractmethod
    def first_infos(self, ids: Sequence[int]) -> dict[str, Any]:
        """Returns the infos of environments that were reset, in the rows of their indices."""

    @abc.abstractmethod
    def each_info(self) -> list[RowInfo]:
        """Returns the infos of the last step of each environment, or of its reset."""


class FirstSteps:
    """Takes first steps, after which no row is in the middle of being begun again.

    Args:
      rows: takes them in the end: `EpisodeRows` of the form that the worlds need.
    """

    has_to_begin = False
    ended: Sequence[int] = ()

    def __init__(self, rows: Any):
        self._rows = rows

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Takes the step of one row."""
        self._rows.forget_restarts([index])
        begins: bool = self._rows.put(index, timestep)
        return begins

    def put_mid_steps(self, indices: list[int], steps: MidSteps) -> None:
        """Takes MID steps of some rows."""
        self._rows.put_mid_steps(indices, steps)

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> None:
        """Takes the steps of rows of a world."""
        rows = np.arange(self._rows.count)
        self._rows.forget_restarts((rows if at is None else rows[at]).tolist())
        self._rows.put_rows(at, taken, timestep)

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Takes the last step of a row whose world was lost."""
        self._rows.put_lost(index, timestep)
