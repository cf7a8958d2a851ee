"""One batched world of several, and what its rows are doing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.environment.many.rows import selector
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.protocol.mid_steps import MidSteps

__all__ = ["Actions", "Owed", "Part", "RowConsumer", "World", "without"]

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


class Part(NamedTuple):
    """Some rows of a world, and their actions in the same order."""

    rows: list[int]
    actions: Actions


Owed: TypeAlias = Callable[[RowConsumer], object]
"""Has a consumer take a TimeStep."""


class World:
    """A batched world, and what its rows are doing.

    Args:
      rows: its rows, by their indices among all environments.
      count: the number of all environments.

    Attributes:
      rows: the same.
      at: selects them among all environments; None for all of these.
      under_way: the rows that take part in the step that is under way.
      queued: the rows that step after it.
      is_running: the rows in which a sequence runs, bool [n].
      has_begun: whether the world has answered a step since it was made.
    """

    def __init__(self, rows: Sequence[int], count: int):
        self.rows = list(rows)
        self.at = None if len(rows) == count else selector(self.rows)
        self._place = {row: place for place, row in enumerate(rows)}
        self.under_way: list[int] = []
        self.queued: list[Part] = []
        self.is_running = np.zeros(len(rows), np.bool_)
        self.has_begun = False

    @property
    def busy(self) -> list[int]:
        """The rows with a step under way, or queued."""
        return [*self.under_way, *(row for part in self.queued for row in part.rows)]

    def places(self, rows: Iterable[int]) -> list[int]:
        """Returns the places that rows have in this world."""
        return [self._place[row] for row in rows]

    def next_parts(self) -> list[Part]:
        """Takes the parts from the queue that can be sent in one step, with the same actions."""
        names = self.queued[0].actions.keys()
        count = next(
            (i for i, part in enumerate(self.queued) if part.actions.keys() != names),
            len(self.queued),
        )
        taken, self.queued = self.queued[:count], self.queued[count:]
        return taken

    def action(self, parts: Sequence[Part]) -> Actions:
        """Returns the action of a step in which some rows take part."""
        places = self.places(row for part in parts for row in part.rows)
        merged = {
            name: np.concatenate([part.actions[name] for part in parts])
            for name in parts[0].actions
        }
        if len(places) == len(self.rows):
            order = np.argsort(places)
            return {name: values[order] for name, values in merged.items()}
        action = {batches.STEP_MASK: np.isin(np.arange(len(self.rows)), places)}
        for name, values in merged.items():
            # Rows that do not step have any value that is valid.
            action[name] = np.repeat(values[:1], len(self.rows), axis=0)
            action[name][places] = values
        return action


def without(part: Part, rows: Iterable[int]) -> Part:
    """Returns a part without some rows."""
    kept = [position for position, row in enumerate(part.rows) if row not in rows]
    return Part(
        [part.rows[position] for position in kept],
        {name: values[kept] for name, values in part.actions.items()},
    )
