"""The first steps of rows that begin again."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client.adaptors.gymnasium.vector_rows import VectorRows
from dm_env_rpc_client.adaptors.gymnasium.world_rows import WorldRows

__all__ = ["FirstSteps"]


class FirstSteps:
    """Takes first steps, after which no row is in the middle of being begun again.

    Args:
      rows: takes them in the end.
    """

    def __init__(self, rows: VectorRows | WorldRows):
        self._rows = rows
        self.put_mid_steps = rows.put_mid_steps
        self.put_lost = rows.put_lost

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Takes the step of one row."""
        self._rows.forget_restarts([index])
        return self._rows.put(index, timestep)

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> None:
        """Takes the steps of rows of a world."""
        rows = np.arange(self._rows.count)
        self._rows.forget_restarts((rows if at is None else rows[at]).tolist())
        self._rows.put_rows(at, taken, timestep)
