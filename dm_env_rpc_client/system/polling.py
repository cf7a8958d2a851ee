"""What `select` can wait for: an item in a queue, by a pipe to itself (the self-pipe trick).

The reader checks the queue first and selects only if it is empty: a readable descriptor says
only that the queue may hold an item.
"""

from __future__ import annotations

import os
import sys

from dm_env_rpc_client.system.locks import make_lock


class SelfPipe:
    """A descriptor that `notify` makes readable and `drain` unreadable.

    The pipe is opened by the first call of `fileno`, so that one that is not used costs nothing.
    """

    def __init__(self) -> None:
        # No byte may be written while the descriptors are closed: their numbers may belong to
        # other files then.
        self._lock = make_lock()
        self._ends: tuple[int, int] | None = None
        self._is_closed = False

    def fileno(self) -> int:
        """Returns the descriptor, readable from the first `notify` to the next `drain`.

        A new descriptor is readable at once, because `notify` may have been called before it
        was opened. -1 if the pipe is closed.
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

    def notify(self) -> None:
        """Makes the descriptor readable."""
        if self._ends is None:
            return
        with self._lock:
            if self._ends is not None:
                try:
                    os.write(self._ends[1], b"!")
                except BlockingIOError:
                    pass  # The pipe is full, so it is readable already.

    def drain(self) -> None:
        """Makes the descriptor unreadable; call it before checking the queue."""
        if self._ends is None:
            return
        with self._lock:
            if self._ends is not None:
                try:
                    os.read(self._ends[0], 4096)
                except BlockingIOError:
                    pass  # The pipe is empty already.

    def abandon(self) -> None:
        """Closes a forked child's copy of the descriptors."""
        self._lock = make_lock()
        self.close()

    def close(self) -> None:
        """Closes the descriptor; a second call does nothing."""
        with self._lock:
            ends, self._ends = self._ends, None
            self._is_closed = True
        for end in ends or ():
            os.close(end)


def why_no_epoll() -> str:
    """Returns what is needed for epoll, after the word "takes"."""
    if not sys.platform.startswith("linux"):
        return "Linux"
    return (
        "select.epoll, which monkey patching, such as gevent's, has removed from this process; "
        "serve in a process without it"
    )
