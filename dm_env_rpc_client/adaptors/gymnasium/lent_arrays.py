"""Arrays of N rows that are given to callers, and never changed after that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LentArrays"]


class LentArrays:
    """Arrays [N, ...] by name, whose rows are filled, and which are given away without a copy.

    Args:
      arrays: the arrays at first.
      stays: whether the arrays stay the same, and callers see what later steps write.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], stays: bool):
        self._arrays = dict(arrays)
        self._stays = stays
        self._is_lent = False

    def replace(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Takes others of the same shapes, which nobody else has."""
        if self._stays:
            for name, array in self._arrays.items():
                array[...] = arrays[name]
            return
        self._arrays = {
            name: arrays[name].astype(former.dtype, copy=False)
            for name, former in self._arrays.items()
        }
        self._is_lent = False

    def to_fill(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the arrays to write to."""
        if self._is_lent:
            self._arrays = {name: array.copy() for name, array in self._arrays.items()}
            self._is_lent = False
        return self._arrays

    def rows(self, ids: npt.NDArray[np.int64] | None) -> dict[str, npt.NDArray[Any]]:
        """Returns rows for a caller.

        Args:
          ids: the indices of the rows, which are copied; None for all.
        """
        if ids is not None:
            return {name: array[ids] for name, array in self._arrays.items()}
        if self._is_lent:
            return {name: array.copy() for name, array in self._arrays.items()}
        self._is_lent = not self._stays
        return self._arrays
