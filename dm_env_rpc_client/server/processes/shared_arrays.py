"""Arrays in unnamed memory that is shared by two processes and freed when both have ended."""

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
"""The layout of an array: its dtype and shape."""


class SharedArrays:
    """Arrays shared by two processes connected by a pipe; arrays of objects are not shared.

    Args:
      forms: the layouts of the arrays, which are the same at both ends.
      descriptor: the descriptor of the memory, closed by `handed_over`; None to allocate it.

    Attributes:
      arrays: the arrays, with None in place of arrays of objects.
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
        """Provide the descriptor for the other process, and close it at the end of the context."""
        try:
            yield self._descriptor
        finally:
            os.close(self._descriptor)


def _unnamed_file() -> int:
    # Not a named segment: in a container, all of /dev/shm is often limited to 64 MB.
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dm_env_rpc rows", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # Systems other than Linux.
        return os.dup(file.fileno())


def forms_of(arrays: Sequence[npt.NDArray[Any]], count: int) -> list[Form]:
    """Return the layouts of arrays of shape [N, ...], with `count` rows instead of N."""
    return [(array.dtype, (count, *array.shape[1:])) for array in arrays]


def _layout(forms: Sequence[Form]) -> tuple[list[int | None], int]:
    """Return the offset of each array and the total size of all arrays, in bytes."""
    offsets: list[int | None] = []
    size = 0
    for dtype, shape in forms:
        # Pointers mean nothing in another process.
        if dtype.kind == "O":
            offsets.append(None)
            continue
        offsets.append(size)
        taken = math.prod(shape) * dtype.itemsize
        size += -(-taken // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(size, 1)
