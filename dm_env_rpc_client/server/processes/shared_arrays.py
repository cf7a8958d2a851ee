"""Arrays in memory that two processes have; it has no name, and ends with them."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64

Form: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and the shape of an array."""


class SharedArrays:
    """Arrays that the process at the other end has, too. Arrays of objects are not among them.

    Args:
      forms: those of the arrays, the same at both ends.
      descriptor: of the memory, which is closed; None to allocate it.

    Attributes:
      arrays: None in the place of one of objects.
    """

    def __init__(self, forms: Sequence[Form], descriptor: int | None = None):
        offsets, size = _layout(forms)
        if descriptor is None:
            descriptor = _unnamed_file()
            os.truncate(descriptor, size)
        try:
            memory = mmap.mmap(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.arrays: list[npt.NDArray[Any] | None] = [
            None
            if offset is None
            else np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)
            for offset, (dtype, shape) in zip(offsets, forms, strict=True)
        ]

    @contextlib.contextmanager
    def handed_over(self) -> Iterator[int]:
        """A context with the descriptor for the other process; it is closed afterwards."""
        try:
            yield self._descriptor
        finally:
            os.close(self._descriptor)


def _unnamed_file() -> int:
    # Not a named segment: those of /dev/shm have 64 MB together in a container.
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dm_env_rpc rows", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # Systems other than Linux.
        return os.dup(file.fileno())


def forms_of(arrays: Sequence[npt.NDArray[Any]], count: int) -> list[Form]:
    """Return the forms of arrays [N, ...] with `count` rows."""
    return [(array.dtype, (count, *array.shape[1:])) for array in arrays]


def _layout(forms: Sequence[Form]) -> tuple[list[int | None], int]:
    """Return where each array begins, and the size of all."""
    offsets: list[int | None] = []
    size = 0
    for dtype, shape in forms:
        if dtype.kind == "O":
            offsets.append(None)
            continue
        offsets.append(size)
        taken = math.prod(shape) * dtype.itemsize
        size += -(-taken // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(size, 1)
