"""Who answers a stream: the thread that leads, the owner of its world, or a thread of its own.

One thread at a time leads: it reads requests and writes answers. A thread that leads is an owner
(`system/owners.py`), and the calls of an environment are made by its owner alone.

- The thread that leads answers streams of its own worlds and those that belong to nobody, as long
  as their answers are quick.
- Requests for worlds of another owner are put into its queue.
- A stream that belongs to nobody has a thread of its own while its answers are slow or may wait
  for other streams, and for a request that an owner could not answer without a wait.
- Another thread leads when an answer has taken two ticks, or when the answers of a world that
  belongs to the thread that leads are slow on average. The former thread keeps its worlds.
- A thread that leads and has no worlds gives the lead back to an owner whose answers are quick.
- Nothing is answered while the client does not take earlier answers.

A stream is answered by one thread at a time: `ServedStream.has_thread` says that one other than
the one that leads does, or is to.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from dm_env_rpc_client.system.busy_wait import at_work
from dm_env_rpc_client.system.owners import ElsewhereError, Owner
from dm_env_rpc_client.transports.http2.server.connection import ServedStream, ServerConnection
from dm_env_rpc_client.transports.server_streams import StreamStatusError

_log = logging.getLogger(__name__)

TICK_SECONDS = 0.005
"""How often the watcher looks; an answer that it sees twice takes the lead from its thread."""

_SLOW_SECONDS = 0.001
"""Answers that take longer than this on average are slow, until they take less than the next."""

_QUICK_SECONDS = 0.0003

_TAKEN_SECONDS = 1.0
"""How long a thread that has given up the lead stays at work, at most, until another one is."""

_REST_SECONDS = 0.5
"""After so much time without an answer the watcher waits to be woken."""

_LINGER_SECONDS = 5.0
"""How long the thread of a stream waits for a request."""

_MAX_WAITING = 64
"""Requests of a stream that wait for its thread; the client's window stays closed meanwhile."""

_MAX_AHEAD_BYTES = 1 << 26
"""What may wait to be answered on a connection before a stream that sends more is ended."""

_REQUEST_BYTES = 128
"""What a request takes beside its contents."""

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


class Answering:
    """Has the requests of a listener's streams answered.

    Only the thread that leads calls the methods. Those that may take long raise RelievedError if
    another thread leads when they are done.

    Args:
      leader: the lead of the listener.
      close_stream: closes a stream that is over; called by the thread that answers it.
      start: starts a thread; RuntimeError if none can be started. Called with what the thread
        calls, a name and an argument.
      lead: has an owner lead, or a new one if there is None; RuntimeError as `start`.
      again: has the thread that leads look at a connection again.
      command: has the thread that leads do something, as soon as it can; called by any thread.
    """

    def __init__(
        self,
        leader: Leader,
        close_stream: Callable[[ServedStream], None],
        start: Callable[..., None],
        lead: Callable[[Owner | None], None],
        again: Callable[[ServerConnection], None],
        command: Callable[[Callable[[], None]], None],
    ):
        self._leader = leader
        self._close_stream = close_stream
        self._start = start
        self._lead = lead
        self._again = again
        self._command = command

    def request(self, served: ServedStream, message: bytearray | memoryview) -> None:
        """Has a request answered."""
        if served.call.is_over:
            return
        leader, stream = self._leader, served.stream
        owner = leader.owner
        if (
            served.has_thread
            or served.waiting
            or (
                stream.owner is not owner
                and (stream.owner is not None or served.seconds > _SLOW_SECONDS)
            )
            or stream.may_wait
            or served.is_stalled
        ):
            self._enqueue(served, message)
            return
        leader.enter(served, True)
        try:
            answer = served.answer(message)
        except ElsewhereError:
            leads = leader.leave(owner)
            self._elsewhere(served, message)
            if not leads:
                raise RelievedError from None
            return
        if not leader.leave(owner):
            self._relieved(served, answer, owner)
        elif not served.reply(answer, False):
            self._close(served)
        elif served.seconds > _SLOW_SECONDS and stream.owner is owner and owner is not None:
            self._give_up_slow(served, owner)

    def end_requests(self, served: ServedStream) -> None:
        """The client sends no more."""
        if served.stays:
            return
        with served.condition:
            served.has_ended = True
            if served.has_thread:
                served.condition.notify_all()
                return
            if served.waiting:
                return  # They are answered when the client takes the answers.
        with served.connection.lock:
            served.call.finish("OK")
        self._close(served)

    def abandon(self, served: ServedStream) -> None:
        """The client is gone."""
        with served.condition:
            if served.is_gone or served.is_closed:
                return
            served.is_gone = True
            served.waiting.clear()
            # Under the condition: `close` comes after it.
            try:
                served.stream.abandon()
            except BaseException:
                _log.exception("abandoning a stream of %s failed", served.connection.address)
            if served.has_thread:
                served.condition.notify_all()
                return
        self._close(served)

    def resume(self, connection: ServerConnection) -> None:
        """Goes on with streams whose answers could not be sent."""
        with connection.lock:
            ready = [served for served in connection.stalled if not served.is_stalled]
            connection.stalled.difference_update(ready)
        for served in ready:
            self._go_on(served)

    def _close(self, served: ServedStream) -> None:
        """Has a stream that no thread answers closed."""
        owner, leading = served.stream.owner, self._leader.owner
        if served.stream.may_wait or not (owner is None or owner is leading):
            served.is_gone = True
            self._go_on(served)
            return
        self._leader.enter(served, False)
        self._close_stream(served)
        if not self._leader.leave(leading):
            raise RelievedError

    # The lead.

    def _relieved(
        self, served: ServedStream, answer: bytes | StreamStatusError, owner: Owner | None
    ) -> None:
        """Ends an answer during which another thread took the lead; raises RelievedError."""
        # The worlds are what this thread keeps. It gets the lead back if this was an exception.
        is_kept = owner is not None and served.stream.owner is owner
        if not is_kept:
            served.seconds = max(served.seconds, TICK_SECONDS)
        if served.reply(answer, True):
            self._hand_over(served)
        else:
            self._close_stream(served)
        if owner is not None and is_kept:
            self._note(served, owner)
            if not owner.slow:
                self._ask_for_lead(owner)
        raise RelievedError

    def _give_up_slow(self, served: ServedStream, owner: Owner) -> None:
        """Has another thread lead, so that others do not wait for slow worlds of this one."""
        self._note(served, owner)
        with served.connection.lock:
            served.connection.flush()
        self._again(served.connection)
        self._leader.give_up()
        try:
            self._lead(None)
        except RuntimeError:
            if self._leader.take(owner):
                return
        raise RelievedError

    def _ask_for_lead(self, owner: Owner) -> None:
        """Asks for the lead for an owner whose answers do not take long any more."""
        self._command(functools.partial(self._offer_lead, owner))

    def _offer_lead(self, owner: Owner) -> None:
        leading = self._leader.owner
        if leading is not None and _is_to_lead(owner, leading):
            self._give_lead(owner, leading)
            self._require_lead(leading)

    def _give_lead(self, to: Owner, leading: Owner) -> None:
        self._leader.give_up()
        try:
            self._lead(to)
        except RuntimeError:  # It has ended.
            self._leader.take(leading)

    def _require_lead(self, owner: Owner) -> None:
        if self._leader.owner is not owner:
            raise RelievedError

    def _note(self, served: ServedStream, owner: Owner) -> None:
        """Takes note whether the answers of a stream take long; in the thread of its owner."""
        slow, stream = owner.slow, served.stream
        if served not in slow:
            if served.seconds > _SLOW_SECONDS and stream.owner is owner:
                slow.add(served)
                stream.paced(True)
            return
        if stream.owner is owner:
            if served.seconds > _QUICK_SECONDS:
                return
            stream.paced(False)
        slow.discard(served)
        if not slow:
            self._ask_for_lead(owner)

    # Other threads.

    def _enqueue(self, served: ServedStream, message: bytearray | memoryview) -> None:
        """Has a request answered by another thread."""
        connection = served.connection
        with served.condition:
            served.waiting.append(message)
            served.waiting_bytes += len(message) + _REQUEST_BYTES
            if len(served.waiting) >= _MAX_WAITING:
                with connection.lock:
                    served.call.hold(True)
            is_much = not len(served.waiting) % _MAX_WAITING
            has_thread = served.has_thread
            if has_thread:
                served.condition.notify()
            elif served.is_stalled:
                with connection.lock:
                    connection.stalled.add(served)
                has_thread = True  # `resume` gives one.
            else:
                served.has_thread = True
        owner, leading = served.stream.owner, self._leader.owner
        if not has_thread:
            if owner is not None and leading is not None and _is_to_lead(owner, leading):
                self._again(connection)
                # After the request was queued: the one that leads next may find others of it.
                self._give_lead(owner, leading)
                self._hand_over(served)
                self._require_lead(leading)
                return
            self._hand_over(served)
        if is_much and sum(one.waiting_bytes for one in list(connection.served)) > _MAX_AHEAD_BYTES:
            with connection.lock:
                served.call.finish(
                    "RESOURCE_EXHAUSTED", "the client sent too many requests ahead of the answers"
                )
            self.abandon(served)

    def _go_on(self, served: ServedStream) -> None:
        """Has a stream that no thread answers go on where it is to be answered, or closed."""
        with served.condition:
            if served.has_thread or served.is_closed:
                return
            served.has_thread = True
        self._hand_over(served)

    def _elsewhere(self, served: ServedStream, message: bytearray | memoryview) -> None:
        """Has a thread that is no owner answer a request, before those that wait.

        Called by the thread that answers the stream, which does not go on with it.
        """
        with served.condition:
            served.has_thread = True
            served.waiting.appendleft(message)
            served.waiting_bytes += len(message) + _REQUEST_BYTES
        self._give_thread(served)

    def _hand_over(self, served: ServedStream) -> None:
        """Has a stream answered by its owner, or by a thread that is no owner if it has none.

        Called by the thread that answers the stream, or that has set `has_thread`.
        """
        owner = served.stream.owner
        if owner is None:
            self._give_thread(served)
            return
        try:
            owner.put(self._serve_owned, served, owner)
        except RuntimeError:
            # The server stops, or was forgotten.
            with served.connection.lock:
                served.call.finish("UNAVAILABLE", "the server was stopped")
            self._close_stream(served)

    def _give_thread(self, served: ServedStream) -> None:
        try:
            self._start(self._serve_alone, "serves a stream", served)
        except RuntimeError:
            _log.exception("no thread can be started for %s", served.connection.address)
            with served.connection.lock:
                served.call.finish("RESOURCE_EXHAUSTED", "the server cannot start a thread")
            self._close_stream(served)

    def _serve_alone(self, served: ServedStream) -> None:
        """Answers requests until the stream is over, quick, idle, or its owner's."""
        with at_work():
            is_owned = False
            while True:
                if is_owned:
                    break
                message = self._next_request(served, True)
                if message is None:
                    break
                if not served.reply(served.answer(message), True):
                    self._close_stream(served)
                    return
                is_owned = served.stream.owner is not None
            if is_owned:
                self._hand_over(served)
                return
        if served.has_thread:
            self._end(served)

    def _serve_owned(self, served: ServedStream, owner: Owner) -> None:
        """Answers a request of a stream, or closes it; in the thread of its owner."""
        message = self._next_request(served, False)
        if message is None:
            if served.has_thread:
                self._end(served)
            return
        with at_work():
            try:
                answer = served.answer(message)
            except ElsewhereError:
                self._elsewhere(served, message)
                return
            goes_on = served.reply(answer, True)
        self._note(served, owner)
        if not goes_on:
            self._close_stream(served)
            return
        with served.condition:
            has_more = bool(served.waiting or served.has_ended or served.is_gone)
            served.has_thread = has_more
        if has_more:
            # Others that wait for this thread have their turns.
            self._hand_over(served)

    def _end(self, served: ServedStream) -> None:
        if not served.is_gone:
            with served.connection.lock:
                served.call.finish("OK")
                served.connection.flush()
        self._close_stream(served)

    def _next_request(
        self, served: ServedStream, may_linger: bool
    ) -> bytearray | memoryview | None:
        """Returns a request; None if there is none.

        Then `has_thread` is False if others are to go on with the stream, and True if it is over.

        Args:
          served: the stream.
          may_linger: whether to wait for a request.
        """
        connection = served.connection
        is_idle = False
        with served.condition:
            while True:
                if served.waiting:
                    break
                if served.has_ended or served.is_gone:
                    return None
                if is_idle or not may_linger:
                    served.has_thread = False
                    return None
                is_quick = served.seconds < _QUICK_SECONDS and not served.stream.may_wait
                is_idle = is_quick or not served.condition.wait(_LINGER_SECONDS)
            # With the lock: whoever receives that there is room again looks at `stalled` then.
            with connection.lock:
                if served.is_stalled:
                    connection.stalled.add(served)
                    served.has_thread = False
                    return None
            message = served.waiting.popleft()
            served.waiting_bytes -= len(message) + _REQUEST_BYTES
            if not served.waiting and served.call.assembler.is_held:
                with connection.lock:
                    served.call.hold(False)
                    connection.flush()
        return message


def _is_to_lead(owner: Owner, leading: Owner) -> bool:
    """Whether another lead is of use: it spares the change of threads of most requests."""
    return (
        owner is not leading
        and leading.holds == 1  # The lead.
        and owner.holds > 0
        and not owner.slow
        and owner.may_lead
    )
