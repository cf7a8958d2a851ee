"""The answers of several environments that are in the middle of their sequences, read together.

A TimeStep for each would be taken apart again at once where arrays are stacked. Without them, 16
environments with a scalar on one server took 0.89 of the time, and 0.82 of the client's processor
(both states of the client in turns).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.protocol.step_layout import UnreadStep

__all__ = ["MidSteps"]

_JOINED_BYTES = 1 << 12
"""Answers up to this are put together before they are read. Of larger ones each array is copied to
its row: with 16 of uint8 84x84x4 that takes 1.2 us for each, and an assignment by NumPy 1.9."""


class MidSteps:
    """MID steps, one for each of some environments, whose answers are of one layout.

    Args:
      steps: the answers, at least one.
    """

    def __init__(self, steps: Sequence[UnreadStep]):
        self._steps = steps
        self._layout = layout = steps[0].layout
        self._joined: npt.NDArray[Any] | None = None
        if layout.size <= _JOINED_BYTES:
            self._joined = np.frombuffer(b"".join([step.message for step in steps]), layout.record)

    def __len__(self) -> int:
        return len(self._steps)

    def put(
        self,
        name: str,
        rows: npt.NDArray[Any],
        at: slice | list[int],
        stand_in: float | None = None,
    ) -> None:
        """Copies the values of an observation into rows of an array.

        Args:
          name: of the observation, a flat name.
          rows: an array [N, ...] of the shape of the observation.
          at: the rows of these steps.
          stand_in: the value if the observation was not requested; None if it was.
        """
        layout, steps = self._layout, self._steps
        if self._joined is not None and name in layout.blocks:
            rows[at] = self._joined[name]
            return
        text, slot = layout.constants.get(name), layout.slots.get(name)
        if text is not None:
            rows[at] = text
        elif stand_in is not None and name not in layout.blocks:
            rows[at] = stand_in
        elif slot is not None:
            rows[at] = [step.found[slot] for step in steps]
        else:
            places = range(len(rows))[at] if isinstance(at, slice) else at
            block, field = layout.blocks[name]
            dtype = field.codec.dtype.newbyteorder("<")
            if rows.dtype == dtype and rows.flags.c_contiguous:
                size = rows[0].nbytes
                memory = rows.reshape(-1).view(np.uint8).data
                for place, step in zip(places, steps, strict=True):
                    content = memoryview(step.message)[block : block + size]
                    memory[place * size : (place + 1) * size] = content
                return
            for place, value in zip(places, self.values(name), strict=True):
                rows[place] = value

    def values(self, name: str) -> list[Any]:
        """Returns the values of an observation, each in memory of its own, or a string."""
        layout = self._layout
        text = layout.constants.get(name)
        if text is not None:
            return [text] * len(self)
        dtype = layout.blocks[name][1].codec.dtype
        if self._joined is not None:
            return list(self._joined[name].astype(dtype))
        records = [np.frombuffer(step.message, layout.record)[name] for step in self._steps]
        return [record.astype(dtype)[0] for record in records]
