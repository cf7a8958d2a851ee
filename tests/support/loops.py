"""Environments and connections of asyncio, used as those of threads are."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from dm_env_rpc_client import make, make_async


class Blocking:
    """Runs the coroutines of an object in a loop, as they are called."""

    def __init__(self, loop: asyncio.AbstractEventLoop, object_: Any):
        self._loop = loop
        self._object = object_

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._object, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute
        return lambda *given, **how: self._loop.run_until_complete(attribute(*given, **how))


@contextlib.contextmanager
def opened(is_async: bool, *given: Any, **how: Any) -> Iterator[Any]:
    """The environment of `make`, or that of `make_async`."""
    if not is_async:
        with make(*given, **how) as env:
            yield env
        return
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        own = Blocking(loop, loop.run_until_complete(make_async(*given, **how)))
        with contextlib.closing(own):
            yield own
