"""Arrays of N rows that are given to callers, and never changed after that.

Callers may change them. So what they were given is not read again: a row that stays as it was is in
arrays that nobody else has, or in the next message, which has all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LentArrays"]


class LentArrays:
    """Arrays [N, ...] by name, whose rows are filled.

    Those of a message that has all rows are given away without a copy; every further message fills
    all rows then. Those that are filled row by row are copied for the caller.

    Args:
      arrays: the arrays at first.
      stays: whether the arrays stay the same, and callers see what later steps write.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], stays: bool):
        self._arrays = dict(arrays)
        self._stays = stays
        # Whether the arrays were those of a message, and whether a caller has them.
        self._is_of_message = self._is_lent = False

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
        self._is_of_message, self._is_lent = True, False

    def to_fill(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the arrays, to write to some rows."""
        if self._is_lent:  # The other rows are what the caller has made of them.
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
        if self._stays:
            return self._arrays
        if self._is_of_message and not self._is_lent:
            self._is_lent = True
            return self._arrays
        return {name: array.copy() for name, array in self._arrays.items()}
