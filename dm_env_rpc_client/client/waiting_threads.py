"""Wakes each sleeping thread of a connection when its answer arrives or its turn to read comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

Wake: TypeAlias = Callable[[], None]


class Sleepers(dict[Wake, None]):
    """The wake-up functions of waiting threads, in order of arrival.

    No lock is needed, since each use is a single operation on the dictionary. A thread adds itself
    and then tries to read; a thread that stops reading wakes another. So no wake-up is lost.

    Args:
      of_futures: a function that wakes the thread of the futures, which reads if no other thread
        waits.
    """

    def __init__(self, of_futures: Wake):
        super().__init__()
        self._of_futures = of_futures

    def add(self, wake: Wake) -> bool:
        """Add a thread, and return whether it is the only waiting thread."""
        self[wake] = None
        return len(self) == 1

    def wake_one(self) -> None:
        """Wake one thread, which reads unless another thread is already reading."""
        for wake in list(self):
            if wake is not self._of_futures:
                wake()
                return
        # The futures thread adds itself again while a future needs it.
        if self.pop(self._of_futures, False) is None:
            self._of_futures()


def waking(asleep: threading.Lock) -> Wake:
    """Return a function that wakes a thread waiting for a lock."""

    def wake() -> None:
        try:
            asleep.release()
        except RuntimeError:
            pass  # The thread is already awake.

    return wake
