"""Lists, mappings and arrays of objects that contain themselves, or have thousands of levels.

What packs values goes through a bounded number of levels, so that it asks here only where they
end: values of a usual depth cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError

__all__ = ["contains_itself", "text_of", "text_of_deep", "too_deep"]


def contains_itself(value: Any) -> bool:
    """Whether a list, tuple, mapping or array of objects contains itself, at any level."""
    # Without recursion: the value may be deeper than Python's stack.
    above: set[int] = set()
    done: set[int] = set()
    left: list[tuple[Any, bool]] = [(value, False)]
    while left:
        part, is_done = left.pop()
        if is_done:
            above.discard(id(part))
            done.add(id(part))
            continue
        parts = _parts(part)
        if parts is None or id(part) in done:
            continue
        if id(part) in above:
            return True
        above.add(id(part))
        left.append((part, True))
        left.extend((each, False) for each in parts)
    return False


def too_deep(value: Any, where: str, most: int) -> SpecError:
    """Returns the error for a value of more levels than are packed.

    Args:
      value: the value.
      where: what it is.
      most: the number of levels.
    """
    if contains_itself(value):
        return SpecError(f"{where}: {_itself(value)}")
    return SpecError(f"{where}: more than {most} levels deep: {arguments.shown(value)}; give fewer")


def text_of_deep(value: Any) -> str:
    """Returns the text of a value that is below the last level that is packed.

    Raises:
      SpecError: it contains itself.
    """
    if contains_itself(value):
        raise SpecError(_itself(value))
    return text_of(value)


def text_of(value: Any) -> str:
    """Returns `repr(value)`, or a shorter text for a value that is too deep for it."""
    try:
        return repr(value)
    except RecursionError:
        return arguments.shown(value)


def _itself(value: Any) -> str:
    return f"a value contains itself: {arguments.shown(value)}; give a copy without that"


def _parts(value: Any) -> Iterable[Any] | None:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return list(value.flat)
    return None
