"""Which thread leads, and when another one takes the lead from it.

Threads that lead are owners. One from which the lead is taken keeps the worlds that belong to it.
"""

from __future__ import annotations

import threading
import time
from typing import TypeAlias

from dm_env_rpc_client.system.owners import Owner
from dm_env_rpc_client.transports.http2.server.served_stream import ServedStream

TICK_SECONDS = 0.005
"""How often the watcher looks; an answer that it sees twice is slow."""

_TAKEN_SECONDS = 1.0
"""How long a thread that has given up the lead stays at work, at most, until another one is."""

_REST_SECONDS = 0.5
"""After so much time without an answer the watcher waits to be woken."""

Inline: TypeAlias = tuple[ServedStream | None, bool]
"""What the thread that leads is doing: for which stream, if for one, and whether that is an
answer."""


class RelievedError(Exception):
    """Another thread leads from here on; this one has nothing more to do."""


class Leader:
    """The lead of a listener, which belongs to one thread at a time.

    Before a thread that leads does what may take long it calls `enter`, and afterwards `leave`,
    which says whether it still leads. Another thread calls `watch`.

    Args:
      lock: protects this; held briefly.

    Attributes:
      owner: the thread that leads; None while nobody does.
      is_watched: whether there is a thread that watches.
      is_resting: whether it waits to be woken.
      is_stopped: whether nobody leads any more.
    """

    def __init__(self, lock: threading.Lock):
        self.owner: Owner | None = None
        self.is_watched = self.is_resting = self.is_stopped = False
        self._lock = lock
        self._inline: Inline | None = None
        self._answers = 0
        self._rested = threading.Event()
        self._taken = threading.Event()

    def take(self, owner: Owner) -> bool:
        """Gives the lead to this thread, an owner's; False if another one leads."""
        with self._lock:
            if self.owner is None:
                self.owner, self._inline = owner, None
                self._taken.set()
            return self.owner is owner

    def give_up(self) -> None:
        """Has nobody lead, until another thread takes the lead: if none is quick, the watcher."""
        with self._lock:
            self._taken.clear()
            self.owner = None
            self.enter(None, False)

    def wait_taken(self) -> None:
        """Waits until another thread leads, for a thread that has given up the lead."""
        self._taken.wait(_TAKEN_SECONDS)

    def is_held_by(self, owner: Owner | None) -> bool:
        """Whether an owner still leads."""
        with self._lock:
            return self.owner is owner and not self.is_stopped

    def enter(self, served: ServedStream | None, is_answer: bool) -> None:
        """Begins what may take long."""
        self._inline = (served, is_answer)
        # After that: the watcher looks at both in the other order.
        if self.is_resting:
            self.is_resting = False
            self._rested.set()

    def leave(self, owner: Owner | None) -> bool:
        """Ends what `enter` began; False if `owner`, which began it, does not lead any more."""
        with self._lock:
            leads = self.owner is owner
            if leads:
                self._inline = None
                self._answers += 1
            return leads

    def stop(self) -> None:
        """Ends `watch`; called with the lock."""
        self.is_stopped = True
        self._rested.set()

    def watch(self) -> Inline | None:
        """Waits until something takes long, and takes the lead away.

        If that is an answer, the thread that led goes on with the stream.

        Returns:
          What takes long; None if the listener is stopped.
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
                self.owner = self._inline = None
                self.is_watched = False
                served, is_answer = inline
                if is_answer and served is not None:
                    served.has_thread = True
            return inline
        return None

    def _rest(self) -> None:
        """Waits until there is something to watch again."""
        self._rested.clear()
        self.is_resting = True
        # After that: the thread that leads does both in the other order.
        if self._inline is None and not self.is_stopped:
            self._rested.wait()
        self.is_resting = False
