"""The threads of one connection that sleep until they have an answer, or until one is to read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

Wake: TypeAlias = Callable[[], None]


class Sleepers(dict[Wake, None]):
    """The wake-up calls of the threads, in the order of their arrival.

    There is no lock, since each use is one operation of the dictionary. A thread adds itself and
    then tries to read; one that stops reading wakes another. So one of them sees the other.

    Args:
      of_futures: wakes the thread of the futures, which reads if no other thread waits.
    """

    def __init__(self, of_futures: Wake):
        super().__init__()
        self._of_futures = of_futures

    def add(self, wake: Wake) -> bool:
        """Add a thread; return whether it is the only one."""
        self[wake] = None
        return len(self) == 1

    def wake_one(self) -> None:
        """Wake one thread, which reads unless another one does by then."""
        for wake in list(self):
            if wake is not self._of_futures:
                wake()
                return
        # It adds itself again, as long as a future needs it.
        if self.pop(self._of_futures, False) is None:
            self._of_futures()


def waking(asleep: threading.Lock) -> Wake:
    """Return a function that wakes a thread that waits for a lock."""

    def wake() -> None:
        try:
            asleep.release()
        except RuntimeError:
            pass  # It is awake already.

    return wake
