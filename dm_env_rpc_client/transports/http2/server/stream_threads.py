"""Streams that the thread that leads does not answer: by their owners, or by threads of their own.

A stream that is joined to a world of another owner is answered there. One that no owner has to
answer has a thread of its own while its answers take long or wait for other streams, and for a
request that an owner could not answer without a wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dm_env_rpc_client.system.busy_wait import at_work
from dm_env_rpc_client.system.owners import ElsewhereError, Owner
from dm_env_rpc_client.transports.http2.protocol.pace import HICCUP_SECONDS, SLOW_SECONDS
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection
from dm_env_rpc_client.transports.http2.server.served_stream import ServedStream

_log = logging.getLogger(__name__)

_LINGER_SECONDS = 5.0
"""How long the thread of a stream waits for a request."""

_MAX_WAITING = 64
"""Requests of a stream that wait for its thread; the client's window stays closed meanwhile."""

_MAX_AHEAD_BYTES = 1 << 26
"""What may wait to be answered on a connection before a stream that sends more is ended."""

_REQUEST_BYTES = 128
"""What a request takes beside its contents."""


class StreamThreads:
    """What answers streams of a listener beside the thread that leads.

    Args:
      start: starts a thread; RuntimeError if none can be started. Called with what the thread
        calls, a name and an argument.
      close_stream: closes a stream that is over.
      became_quick: told of an owner whose answers do not take long any more.
    """

    def __init__(
        self,
        start: Callable[..., None],
        close_stream: Callable[[ServedStream], None],
        became_quick: Callable[[Owner], None],
    ):
        self._start = start
        self._close_stream = close_stream
        self._became_quick = became_quick

    def enqueue(
        self,
        served: ServedStream,
        message: bytearray | memoryview,
        before: Callable[[], None] | None = None,
    ) -> bool:
        """Has a request answered by another thread.

        Args:
          served: the stream.
          message: the request.
          before: called when the request is queued, before the thread is told.

        Returns:
          False if the client has sent too many: the call is finished then.
        """
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
        if before is not None:
            before()
        if not has_thread:
            self.hand_over(served)
        if is_much and sum(one.waiting_bytes for one in list(connection.served)) > _MAX_AHEAD_BYTES:
            with connection.lock:
                served.call.finish(
                    "RESOURCE_EXHAUSTED", "the client sent too many requests ahead of the answers"
                )
            return False
        return True

    def go_on(self, served: ServedStream) -> None:
        """Has a stream that no thread answers go on where it is to be answered, or closed."""
        with served.condition:
            if served.has_thread or served.is_closed:
                return
            served.has_thread = True
        self.hand_over(served)

    def elsewhere(self, served: ServedStream, message: bytearray | memoryview) -> None:
        """Has a thread that is no owner answer a request, before those that wait.

        Called by the thread that answers the stream, which does not go on with it.
        """
        with served.condition:
            served.has_thread = True
            served.waiting.appendleft(message)
            served.waiting_bytes += len(message) + _REQUEST_BYTES
        self._give_thread(served)

    def hand_over(self, served: ServedStream) -> None:
        """Has a stream answered by its owner, or by a thread that is no owner if it needs none.

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
                pace = served.pace
                begun, begin = pace.begin(), time.perf_counter()
                answer = served.answer(message)
                pace.end(begun, time.perf_counter() - begin, False)
                if not served.reply(answer, True):
                    self._close_stream(served)
                    return
                is_owned = served.stream.owner is not None
            if is_owned:
                self.hand_over(served)
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
            pace = served.pace
            begun, begin = pace.begin(), time.perf_counter()
            try:
                answer = served.answer(message)
            except ElsewhereError:
                self.elsewhere(served, message)
                return
            pace.end(begun, min(time.perf_counter() - begin, HICCUP_SECONDS), False)
            goes_on = served.reply(answer, True)
        if note_pace(served, owner) and not owner.slow:
            self._became_quick(owner)
        if not goes_on:
            self._close_stream(served)
            return
        with served.condition:
            has_more = bool(served.waiting or served.has_ended or served.is_gone)
            served.has_thread = has_more
        if has_more:
            # Others that wait for this thread have their turns.
            self.hand_over(served)

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
                is_quick = served.pace.is_quick and not served.stream.may_wait
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

    def resume(self, connection: ServerConnection) -> None:
        """Goes on with streams whose answers could not be sent."""
        with connection.lock:
            ready = [served for served in connection.stalled if not served.is_stalled]
            connection.stalled.difference_update(ready)
        for served in ready:
            self.go_on(served)


def note_pace(served: ServedStream, owner: Owner) -> bool:
    """Takes note whether the answers of a stream take long; in the thread of its owner.

    Returns:
      Whether they did, and do not any more, or are not for this owner any more.
    """
    pace = served.pace
    if served in owner.slow:
        if served.stream.owner is not owner:
            owner.slow.discard(served)
            return True
        if pace.is_quick:
            owner.slow.discard(served)
            served.stream.paced(False)
            return True
    elif pace.seconds > SLOW_SECONDS and pace.is_slow and served.stream.owner is owner:
        owner.slow.add(served)
        served.stream.paced(True)
    return False
