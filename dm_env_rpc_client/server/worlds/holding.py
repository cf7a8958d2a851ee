"""What the worlds of a process hold, of which a server may have a limited amount."""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from google.protobuf import any_pb2

from dm_env_rpc_client.tensors.limits import listed

_OVERHEAD = 256
"""Bytes of the Python objects of a setting beside its name and its value."""


class Share:
    """What the worlds of one process take of the limits of a server, and their names.

    That is "worlds", those that are being made among them, "agents" and, for their settings,
    "held_bytes".
    """

    def __init__(self) -> None:
        self._taken: collections.Counter[str] = collections.Counter()
        self._numbers = itertools.count(1)

    def add(self, name: str, count: int) -> None:
        """Adds to what this process takes."""
        self._taken[name] += count

    def total(self, name: str) -> int:
        """Returns what all processes take."""
        return self._taken[name]

    def new_name(self) -> str:
        """Returns the name of a world that this process has made."""
        return f"world-{next(self._numbers)}"

    def forget(self, name: str) -> None:
        """Takes note that there is no such world any more."""

    def missing(self, name: str, known: Iterable[str]) -> str:
        """Returns the text of the error that there is no such world.

        Args:
          name: what was asked for.
          known: the worlds of this process.
        """
        names = list(known)
        worlds = listed(names) if names else "none; create one first"
        return f"no world {name!r}; worlds: {worlds}"


def held_bytes(name: str, value: Any) -> int:
    """Returns about how much memory a setting takes."""
    size = _OVERHEAD + 4 * len(name)
    if isinstance(value, np.ndarray):
        elements = value.flat if value.dtype.kind == "O" else ()
        return size + value.nbytes + sum(_size(element) for element in elements)
    return size + _size(value)


def _size(value: Any) -> int:
    return value.ByteSize() if isinstance(value, any_pb2.Any) else sys.getsizeof(value)
