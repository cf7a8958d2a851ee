"""Without the garbage collector, only references keep objects alive."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collects garbage once, and then none until the end."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
