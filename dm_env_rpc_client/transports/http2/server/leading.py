"""A listener's leader: the thread that reads requests, dispatches them and writes answers.

One thread at a time leads, and in most servers no other thread ever runs. The leader is an owner
thread (`system/owner_threads.py`). Leading is one long call in the owner's queue; a notification
wakes the owner to run its other calls. Another thread takes the lead in three cases:

- An answer has taken two ticks of the watching thread. The watching thread then leads.
- The leading thread owns a world whose answers are slow on average.
- A request arrives for an owner with quick worlds while the leading thread owns no worlds, or has
  passed on several requests in a row. The owner of the quick worlds then leads.

A former leader keeps its worlds. `answering.py` requests the change of leader in the second and
third cases.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from dm_env_rpc_client.system import owner_threads
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.owner_threads import Owner, OwnerThread
from dm_env_rpc_client.system.polling import at_work
from dm_env_rpc_client.transports.http2.server.connection import ServedStream, ServerConnection

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.005
"""The interval, in seconds, between the watching thread's checks. A leader that is busy with the
same answer at two checks loses the lead."""

_TAKEN_SECONDS = 1.0
"""The maximum time, in seconds, that a former leader waits for another thread to take over."""

_REST_SECONDS = 0.5
"""The time without answers, in seconds, after which the watching thread sleeps until it is
woken."""

Inline: TypeAlias = tuple[ServedStream | None, bool]
"""The leading thread's activity: its stream, if any, and whether it is computing an answer."""


class RelievedError(Exception):
    """The error raised in a former leader because another thread has taken the lead."""


class Leader:
    """The right to lead a listener, held by one thread at a time.

    The leading thread calls `enter` before work that can take a long time. Afterwards, it calls
    `leave`, which returns whether the thread still leads.

    Args:
      turn: a function that waits for sockets and serves them, called by the leading thread. It can
        raise RelievedError.
      again: a function that makes the leading thread check a connection again.
      notify: a function that wakes the leading thread from its wait for sockets.

    Attributes:
      name: the listener's name, from which the names of its threads are derived.
      owner: the owner that leads, or None while no thread leads.
      is_stopped: whether the lead has ended, so that no thread leads again.
      inline: the leading thread's activity, if it can take a long time, or None.
      is_resting: whether the watching thread waits for a wake-up.
      answers: the number of answers that leading threads have computed.
    """

    def __init__(
        self,
        turn: Callable[[], None],
        again: Callable[[ServerConnection], None],
        notify: Callable[[], None],
    ):
        self.name = ""
        self.owner: Owner | None = None
        self.is_stopped = False
        self._turn = turn
        self._again = again
        self._notify = notify
        # Protects who leads, and whether there is a thread that watches or it rests; held briefly.
        self._lock = make_lock()
        self._is_watched = self.is_resting = False
        self.inline: Inline | None = None
        self.answers = 0
        self._rested = threading.Event()
        self._taken = threading.Event()

    def start(self, name: str) -> None:
        """Start a new leading thread.

        Raises:
          RuntimeError: no thread can be started.
        """
        self.name = name
        self._have_watched()
        self._new_owner().put(self._lead)

    def stop(self) -> None:
        """Make the leading thread and the watching thread stop."""
        with self._lock:
            self.is_stopped = True
        self._rested.set()

    def is_held_by(self, owner: Owner | None) -> bool:
        """Return whether an owner still leads."""
        with self._lock:
            return self.owner is owner and not self.is_stopped

    def enter(self, served: ServedStream | None, is_answer: bool) -> None:
        """Record the start of a call that can take a long time."""
        self.inline = (served, is_answer)
        # Checked only now: the watcher sets `is_resting` first and then checks `inline`.
        if self.is_resting:
            self.wake_watcher()

    def wake_watcher(self) -> None:
        """Wake the watching thread so that it checks again."""
        self.is_resting = False
        self._rested.set()

    def leave(self, owner: Owner | None) -> bool:
        """Record the end of the call begun by `enter`, and return whether `owner` still leads."""
        with self._lock:
            leads = self.owner is owner
            if leads:
                self.inline = None
                self.answers += 1
            return leads

    def pass_to(self, other: Owner | None, leading: Owner) -> bool:
        """Pass the lead to another owner.

        Args:
          other: the owner to pass the lead to, or None for a new owner.
          leading: the owner that leads, whose thread makes this call.

        Returns:
          Whether `leading` still leads, because `other` has ended or no thread can be started.
        """
        with self._lock:
            self._taken.clear()
            self.owner = None
            # If the other one is in a call for long, the watcher leads.
            self.enter(None, False)
        try:
            (other or self._new_owner()).put(self._lead)
        except RuntimeError:
            return self._take(leading)
        return False

    def run_calls(self) -> None:
        """Run the calls that other threads have queued for the leading owner."""
        if self.owner is not None:
            self.owner.run_waiting(self.run)

    def run(self, call: Callable[[], None], served: ServedStream | None = None) -> None:
        """Call a function that can take a long time but does not compute an answer.

        Args:
          call: the function.
          served: the stream concerned, if any.

        Raises:
          RelievedError: another thread has taken the lead during the call.
        """
        owner = self.owner
        self.enter(served, False)
        call()
        if not self.leave(owner):
            raise RelievedError

    # The leading thread.

    def _new_owner(self) -> OwnerThread:
        return OwnerThread(f"{self.name} leads")

    def _take(self, owner: Owner) -> bool:
        """Make an owner the leader, or return False if another owner leads."""
        with self._lock:
            if self.owner is None:
                self.owner, self.inline = owner, None
                self._taken.set()
            return self.owner is owner

    def _lead(self) -> None:
        """Lead until another thread takes over or the listener is stopped."""
        owner = owner_threads.current()
        assert owner is not None, "a thread that leads is an owner"
        if owner.leads:
            return  # It was asked twice.
        with at_work(), owner.listening(self._notify):
            if not self._take(owner):
                return  # This thread was in a call for too long.
            if not self._is_watched:
                self._have_watched()
            try:
                self.run_calls()
                while True:
                    if self.is_stopped:
                        break
                    self._take_turns(owner)
            except RelievedError:
                # So that no other thread of this process takes itself to be alone meanwhile.
                self._taken.wait(_TAKEN_SECONDS)

    def _take_turns(self, owner: Owner) -> None:
        """Lead until the listener is stopped or an error occurs."""
        try:
            while True:
                if self.is_stopped:
                    break
                self._turn()
        except RelievedError:
            raise
        except BaseException:
            if not self.is_held_by(owner):
                raise RelievedError from None
            _log.exception("serving failed")
            time.sleep(TICK_SECONDS)

    # The thread that watches.

    def _have_watched(self) -> None:
        """Start the thread that watches the leader."""
        self._is_watched = True
        try:
            self._new_owner().put(self._watch_and_lead)
        except RuntimeError:
            self._is_watched = False
            _log.exception(
                "cannot start a thread; long answers of one stream will delay the other streams"
            )

    def _watch_and_lead(self) -> None:
        """Watch the leader, and take the lead from it if an answer is slow."""
        owner = owner_threads.current()
        assert owner is not None
        found = self._watch()
        if found is None:
            owner.end()
            return
        if found[0] is not None:
            self._again(found[0].connection)
        self._lead()

    def _watch(self) -> Inline | None:
        """Wait until one of the leader's calls takes a long time, and then take over the lead.

        If the call computes an answer, the former leader continues with the stream.

        Returns:
          The activity that takes a long time, or None if the listener is stopped.
        """
        seen: Inline | None = None
        answers, since = -1, time.monotonic()
        while not self.is_stopped:
            time.sleep(TICK_SECONDS)
            inline = self.inline
            if inline is None or inline is not seen:
                seen = inline
                now = time.monotonic()
                if self.answers != answers:
                    answers, since = self.answers, now
                elif inline is None and now - since > _REST_SECONDS:
                    self._rest()
                    since = time.monotonic()
                continue
            with self._lock:
                if self.inline is not seen:
                    continue
                self.owner = self.inline = None
                self._is_watched = False
                served, is_answer = inline
                if is_answer and served is not None:
                    served.has_thread = True
            return inline
        return None

    def _rest(self) -> None:
        """Wait until the leader starts a call that needs to be watched."""
        self._rested.clear()
        self.is_resting = True
        # Checked only now: the leading thread sets `inline` first and then checks `is_resting`.
        if self.inline is None and not self.is_stopped:
            self._rested.wait()
        self.is_resting = False
