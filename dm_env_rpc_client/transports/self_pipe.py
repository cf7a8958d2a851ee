"""A file descriptor that becomes readable when another thread has something to say.

It lets `select` wait for what arrives in a queue. Who waits looks into the queue first
and selects only when that is empty: a ring says that there may be something, no more.
"""

from __future__ import annotations

import os
import threading

__all__ = ["Doorbell"]


class Doorbell:
    """Costs nothing until somebody asks for its descriptor."""

    def __init__(self) -> None:
        # So that no ring can come while the descriptors are closed: their numbers may be
        # those of other files by then.
        self._lock = threading.Lock()
        self._ends: tuple[int, int] | None = None
        self._is_closed = False

    def fileno(self) -> int:
        """Returns the descriptor, readable from the first ring to the next `quiet`.

        A new one is readable at once, for there may have been rings before it was there.
        -1 where the bell is closed.
        """
        with self._lock:
            if self._is_closed:
                return -1
            if self._ends is None:
                self._ends = os.pipe()
                for end in self._ends:
                    os.set_blocking(end, False)
                os.write(self._ends[1], b"!")
            return self._ends[0]

    def ring(self) -> None:
        """Makes the descriptor readable."""
        if self._ends is None:
            return
        with self._lock:
            if self._ends is not None:
                try:
                    os.write(self._ends[1], b"!")
                except BlockingIOError:
                    pass  # It rings already.

    def quiet(self) -> None:
        """Makes the descriptor unreadable; call it before looking into the queue."""
        if self._ends is None:
            return
        with self._lock:
            if self._ends is not None:
                try:
                    os.read(self._ends[0], 4096)
                except BlockingIOError:
                    pass  # It was quiet.

    def close(self) -> None:
        """Closes the descriptor; a second time does nothing."""
        with self._lock:
            ends, self._ends = self._ends, None
            self._is_closed = True
        for end in ends or ():
            os.close(end)
