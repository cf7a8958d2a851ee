"""Which thread leads, and when another one takes the lead from it."""

from __future__ import annotations

import threading
import time
from typing import TypeAlias

from dm_env_rpc_client.transports.http2.server.served_stream import ServedStream

TICK_SECONDS = 0.005
"""How often the watcher looks; an answer that it sees twice is slow."""

_REST_SECONDS = 0.5
"""After so much time without an answer the watcher waits to be woken."""

Inline: TypeAlias = tuple[ServedStream, bool]
"""What the thread that leads is doing for one stream, and whether that is an answer."""


class RelievedError(Exception):
    """Another thread leads from here on; this one has nothing more to do."""


class Leader:
    """The lead of a listener, which belongs to one thread at a time, and to each thread once.

    Before a thread that leads does what may take long it calls `enter`, and afterwards `leave`,
    which says whether it still leads. Another thread calls `watch`.

    Args:
      lock: protects this; held briefly.

    Attributes:
      is_resting: whether the thread that watches waits to be woken.
      is_stopped: whether nobody leads any more.
    """

    def __init__(self, lock: threading.Lock):
        self.is_resting = self.is_stopped = False
        self._lock = lock
        self._leader = 0
        self._inline: Inline | None = None
        self._answers = 0
        self._rested = threading.Event()

    def take(self) -> None:
        """Gives the lead to this thread."""
        with self._lock:
            self._leader = threading.get_ident()

    def is_held(self) -> bool:
        """Whether this thread still leads."""
        with self._lock:
            return self._leader == threading.get_ident() and not self.is_stopped

    def enter(self, served: ServedStream, is_answer: bool) -> None:
        """Begins what may take long."""
        self._inline = (served, is_answer)
        # After that: the watcher looks at both in the other order.
        if self.is_resting:
            self.is_resting = False
            self._rested.set()

    def leave(self) -> bool:
        """Ends what `enter` began; False if another thread leads now."""
        me = threading.get_ident()
        with self._lock:
            leads = self._leader == me
            if leads:
                self._inline = None
                self._answers += 1
            return leads

    def stop(self) -> None:
        """Ends `watch`; called with the lock."""
        self.is_stopped = True
        self._rested.set()

    def watch(self) -> ServedStream | None:
        """Waits until something takes long, and takes the lead away.

        If that is an answer, the stream has the thread that led from here on.

        Returns:
          The stream for which it takes long; None if the listener is stopped.
        """
        seen: Inline | None = None
        answers, since = -1, time.monotonic()
        while not self.is_stopped:
            time.sleep(TICK_SECONDS)
            inline = self._inline
            if inline is None or inline is not seen:
                seen = inline
                now = time.monotonic()
                if self._answers != answers:
                    answers, since = self._answers, now
                elif inline is None and now - since > _REST_SECONDS:
                    self._rest()
                    since = time.monotonic()
                continue
            with self._lock:
                if self._inline is not seen:
                    continue
                self._leader = 0
                self._inline = None
                served, is_answer = inline
                if is_answer:
                    served.has_thread = True
            return served
        return None

    def _rest(self) -> None:
        """Waits until there is something to watch again."""
        self._rested.clear()
        self.is_resting = True
        # After that: the thread that leads does both in the other order.
        if self._inline is None and not self.is_stopped:
            self._rested.wait()
        self.is_resting = False
