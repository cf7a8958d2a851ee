"""What connecting waits for, and the two ways to wait: in a thread that blocks, in an event loop.

Connecting is written once, as coroutines that await the methods of a `Waits`. Those of `Blocking`
never suspend, so that `run` runs such a coroutine to its end in the calling thread. Whatever ends a
wait, such as an interrupt or a cancelled task, is raised in the coroutine, which frees what it has
opened.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from dm_env_rpc_client.system.threads import in_thread
from dm_env_rpc_client.transports.net.sockets import poll_for

_T = TypeVar("_T")

_FOR_EVER = 1e6


class Waits(Protocol):
    """A way to wait."""

    async def ready(self, polled: Any, events: int, seconds: float | None) -> bool:
        """Waits for a socket.

        Args:
          polled: the socket.
          events: `select.POLLIN`, `select.POLLOUT` or both.
          seconds: how long to wait; None for any time.

        Returns:
          Whether it is ready.
        """

    async def pause(self, seconds: float) -> None:
        """Waits so many seconds."""

    async def call(self, function: Callable[[], _T], seconds: float | None) -> _T:
        """Calls a function that may block, in a thread of its own, which ends with the function.

        Args:
          function: it.
          seconds: how long to wait for its result; None for any time.

        Raises:
          TimeoutError: the function goes on.
        """


class Blocking(Waits):
    """The calling thread waits."""

    async def ready(self, polled: Any, events: int, seconds: float | None) -> bool:
        return poll_for(polled, events)(_FOR_EVER if seconds is None else seconds)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def call(self, function: Callable[[], _T], seconds: float | None) -> _T:
        if seconds is None:
            return function()
        outcomes: list[_T | Exception] = []

        def keep_outcome() -> None:
            try:
                outcomes.append(function())
            except Exception as error:
                outcomes.append(error)

        thread = threading.Thread(target=keep_outcome, daemon=True)
        thread.start()
        thread.join(seconds)
        if not outcomes:
            raise TimeoutError
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        return outcomes[0]


class InLoop(Waits):
    """The running event loop goes on meanwhile."""

    async def ready(self, polled: Any, events: int, seconds: float | None) -> bool:
        loop = asyncio.get_running_loop()
        process, descriptor = os.getpid(), polled.fileno()
        ready: asyncio.Future[bool] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _settle, ready, False)
        try:
            if events & select.POLLIN:
                loop.add_reader(descriptor, _settle, ready, True)
            if events & select.POLLOUT:
                loop.add_writer(descriptor, _settle, ready, True)
            return await ready
        finally:
            # A forked child shares the selector with its parent, which waits on.
            if os.getpid() == process:
                loop.remove_reader(descriptor)
                loop.remove_writer(descriptor)
            if timer is not None:
                timer.cancel()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(self, function: Callable[[], _T], seconds: float | None) -> _T:
        try:
            return await asyncio.wait_for(in_thread(function), seconds)
        except asyncio.TimeoutError:
            raise TimeoutError from None


BLOCKING = Blocking()
IN_LOOP = InLoop()


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine that never suspends, such as one that was given `BLOCKING`."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        result: _T = returned.value
        return result
    finally:
        coroutine.close()
    raise AssertionError("the coroutine has suspended, and there is no event loop")


def _settle(future: asyncio.Future[bool], outcome: bool) -> None:
    if not future.done():
        future.set_result(outcome)
