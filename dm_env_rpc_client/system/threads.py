"""Work in several threads at the same time, also when the interpreter is about to exit.

`concurrent.futures` and `asyncio.to_thread` take no more work as soon as the main thread's code has
ended. Functions that `atexit` calls come after that, and so does a thread that goes on training.
Python 3.12.0 and 3.12.1 start no thread for `atexit`: then the calling thread does the work.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

__all__ = ["MOST_THREADS", "at_once", "can_start_threads", "in_thread"]

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 64
"""The number of items that are worked on at the same time."""


def at_once(items: Iterable[Item], action: Callable[[Item], object]) -> None:
    """Does something for each item, for several at the same time, and waits for all.

    After an error, or an interrupt of the wait, no further item is begun. What `action` raises is
    raised here, the error of the first item if there are several.

    Args:
      items: the items.
      action: called with each.
    """
    work = _Work(items, action)
    threads: list[threading.Thread] = []
    try:
        for _ in range(min(MOST_THREADS, len(work.left))):
            thread = threading.Thread(target=work.run, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # The interpreter exits, or the system has no more threads.
                break
            threads.append(thread)
        if not threads:
            work.run()
        for thread in threads:
            thread.join()
    except BaseException:
        work.left.clear()
        for thread in threads:
            thread.join()
        raise
    for index in sorted(work.failures):
        raise work.failures[index]


def can_start_threads() -> bool:
    """Whether a thread can be started: not at the exit of some Pythons, nor above a limit."""
    thread = threading.Thread(target=lambda: None, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True


async def in_thread(function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    """Calls a function in a thread of its own and waits for it, as `asyncio.to_thread` does."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()
    call = functools.partial(contextvars.copy_context().run, function, *arguments, **named)

    def run() -> None:
        finish: Callable[[], object]
        try:
            finish = functools.partial(outcome.set_result, call())
        except BaseException as error:
            finish = functools.partial(outcome.set_exception, error)
        try:
            loop.call_soon_threadsafe(lambda: None if outcome.done() else finish())
        except RuntimeError:
            pass  # The loop was closed meanwhile.

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError:
        return call()
    return await outcome


class _Work(Generic[Item]):
    """Items that some threads share."""

    def __init__(self, items: Iterable[Item], action: Callable[[Item], object]):
        self.left = collections.deque(enumerate(items))
        self.failures: dict[int, BaseException] = {}
        self._action = action

    def run(self) -> None:
        """Takes one item after the other."""
        while True:
            try:
                index, item = self.left.popleft()
            except IndexError:
                return
            try:
                self._action(item)
            except BaseException as error:
                self.failures[index] = error
                self.left.clear()
