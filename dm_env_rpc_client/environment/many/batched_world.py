"""One batched world of several, and what its rows are doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.environment.many.rows import selector
from dm_env_rpc_client.protocol.mid_steps import MidSteps

__all__ = ["Actions", "RowConsumer", "World"]

Actions: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Arrays by flat name, with a row for each environment."""


class RowConsumer(Protocol):
    """Takes the TimeSteps of N environments."""

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Takes that of one row; see `pool.Consumer`."""

    def put_mid_steps(self, indices: list[int], steps: MidSteps) -> None:
        """Takes MID steps of some rows; see `pool.Consumer`."""

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> None:
        """Takes those of the rows `at`, which are the rows `taken` of a world; None for all."""

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Takes the LAST TimeStep of a row whose world was lost."""


class World:
    """A batched world, and what its rows are doing.

    Args:
      rows: its rows, by their indices among all environments.
      count: the number of all environments.

    Attributes:
      rows: the same.
      at: selects them among all environments; None for all of these.
      under_way: the rows that get the next TimeStep of the world.
      is_running: the rows in which a sequence runs, bool [n].
      has_begun: whether the world has answered a step since it was made.
      unseen: the rows that have begun beside others, and whose first TimeStep nobody has got.
    """

    def __init__(self, rows: Sequence[int], count: int):
        self.rows = list(rows)
        self.at = None if len(rows) == count else selector(self.rows)
        self._place = {row: place for place, row in enumerate(rows)}
        self.under_way: list[int] = []
        self.is_running = np.zeros(len(rows), np.bool_)
        self.has_begun = False
        self.unseen: set[int] = set()

    def places(self, rows: Iterable[int]) -> list[int]:
        """Returns the places that rows have in this world."""
        return [self._place[row] for row in rows]

    def mask(self, rows: Iterable[int]) -> npt.NDArray[np.bool_]:
        """Returns which rows of the world are some rows, bool [n]."""
        return np.isin(np.arange(len(self.rows)), self.places(rows))
