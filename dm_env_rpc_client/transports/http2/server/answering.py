"""Choose the thread that answers a stream: the leader, the world's owner or a separate thread.

An environment is called only by the thread that owns it (`system/owner_threads.py`). The leading
thread (`leading.py`) is also an owner.

- The leading thread answers streams of its own worlds and streams without an owner, as long as
  their answers are quick.
- Requests for worlds of another owner go to that owner's queue.
- A stream without an owner has a separate thread while its answers are slow or might have to wait
  for other streams. A request that an owner cannot answer without waiting also gets a separate
  thread.
- No request is answered while the client leaves earlier answers unread.

Only one thread at a time answers a stream. `ServedStream.has_thread` tells whether a thread other
than the leading thread answers the stream or is about to do so.
"""

from __future__ import annotations

import enum
import functools
import logging
import threading
from collections.abc import Callable

from dm_env_rpc_client.system.owner_threads import ElsewhereError, Owner
from dm_env_rpc_client.system.polling import at_work
from dm_env_rpc_client.transports.http2.server import leading
from dm_env_rpc_client.transports.http2.server.connection import ServedStream, ServerConnection
from dm_env_rpc_client.transports.http2.server.leading import Leader, RelievedError
from dm_env_rpc_client.transports.server_streams import Parts, StreamStatusError
from dm_env_rpc_client.transports.streams import Buffer

_log = logging.getLogger(__name__)

_SLOW_SECONDS = 0.001
"""The average time, in seconds, above which answers count as slow. Answers then count as slow
until their average falls to `_QUICK_SECONDS`."""

_QUICK_SECONDS = 0.0003

_IN_A_ROW = 16
"""The number of consecutive requests for worlds of other owners after which the owner of the last
one leads. Until then, each of these requests costs a change of threads: a third of the time of a
step of 16 cheap rows."""

_LINGER_SECONDS = 5.0
"""The maximum time, in seconds, that a stream's thread waits for a request."""

_MAX_WAITING = 64
"""The maximum number of requests that wait for a stream's thread. When that many requests wait,
the client's window stays closed."""

_MAX_AHEAD_BYTES = 1 << 26
"""The maximum number of bytes of unanswered requests on a connection. A stream that exceeds the
limit is terminated."""

_REQUEST_BYTES = 128
"""The number of bytes counted for a waiting request in addition to its contents."""


class _NoRequest(enum.Enum):
    """The reason why a thread has no request to answer.

    The reason is returned, rather than read from the stream afterwards, because another thread
    might already be answering the stream by then.
    """

    OVER = enum.auto()
    """The stream has ended, and the calling thread must close it."""

    GIVEN_UP = enum.auto()
    """The stream continues, and another thread might already be answering it."""


class Answering:
    """The dispatcher of requests that arrive on a listener's streams.

    Only the leading thread calls the methods. Methods that can take a long time raise
    RelievedError if another thread has taken the lead meanwhile.

    Args:
      leader: the lead of the listener.
      close_stream: a function that closes an ended stream, called by the stream's answering thread.
      again: a function that makes the leading thread check a connection again.
    """

    def __init__(
        self,
        leader: Leader,
        close_stream: Callable[[ServedStream], None],
        again: Callable[[ServerConnection], None],
    ):
        self._leader = leader
        self._close_stream = close_stream
        self._again = again
        # The requests passed to quick owners since the leading thread last answered one itself.
        self._passed, self._answers = 0, 0

    def request(self, served: ServedStream, message: Buffer, at_once: bool = False) -> None:
        """Answer a request, in the calling thread or in another thread.

        Args:
          served: the stream of the request.
          message: the request.
          at_once: whether an answer computed in the calling thread is sent before this method
            returns.
        """
        if served.call.is_over:
            return
        leader, stream = self._leader, served.stream
        owner = leader.owner
        if (
            # Any of these: the request waits in the queue of the stream, and another thread answers
            # it.
            served.has_thread
            or served.waiting
            or (
                stream.owner is not owner
                and (stream.owner is not None or served.seconds > _SLOW_SECONDS)
            )
            or stream.may_wait
            or ((served.connection.unsent or served.blocked) and served.is_stalled)
        ):
            self._enqueue(served, message)
            return
        # Says that this thread is in an answer: the watcher takes over the lead if it takes long.
        leader.inline = (served, True)  # `enter`, without the call.
        if leader.is_resting:
            leader.wake_watcher()
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
        elif not served.reply(answer, at_once):
            self._close(served)
        elif served.seconds > _SLOW_SECONDS and stream.owner is owner and owner is not None:
            self._give_up_slow(served, owner)

    def end_requests(self, served: ServedStream) -> None:
        """Finish a stream after its client's last request."""
        if served.stays:
            return
        with served.condition:
            served.has_ended = True
            if served.has_thread:
                served.condition.notify_all()
                return
            if served.waiting:
                return  # Waiting requests are answered once the client receives answers again.
        with served.connection.lock:
            served.call.finish("OK")
        self._close(served)

    def abandon(self, served: ServedStream) -> None:
        """Abandon a stream after the client has disconnected or has reset the stream."""
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
        """Resume the streams of a connection that were stalled but can now send answers."""
        with connection.lock:
            ready = [served for served in connection.stalled if not served.is_stalled]
            connection.stalled.difference_update(ready)
        for served in ready:
            self._go_on(served)

    def _close(self, served: ServedStream) -> None:
        """Close a stream without an answering thread in the thread that owns the stream."""
        owner, here = served.stream.owner, self._leader.owner
        if served.stream.may_wait or not (owner is None or owner is here):
            served.is_gone = True
            self._go_on(served)
            return
        self._leader.run(functools.partial(self._close_stream, served), served)

    def _relieved(
        self, served: ServedStream, answer: bytes | Parts | StreamStatusError, owner: Owner | None
    ) -> None:
        """Finish an answer after another thread has taken the lead, and raise RelievedError."""
        # The worlds are what this thread keeps.
        is_kept = owner is not None and served.stream.owner is owner
        if not is_kept:
            served.seconds = max(served.seconds, leading.TICK_SECONDS)
        if served.reply(answer, True):
            self._hand_over(served)
        else:
            self._close_stream(served)
        if owner is not None and is_kept:
            self._note(served, owner)
        raise RelievedError

    def _give_up_slow(self, served: ServedStream, owner: Owner) -> None:
        """Pass the lead to another thread, so that streams do not wait for slow worlds."""
        self._note(served, owner)
        with served.connection.lock:
            served.connection.flush()
        self._again(served.connection)
        if not self._leader.pass_to(None, owner):
            raise RelievedError

    def _note(self, served: ServedStream, owner: Owner) -> None:
        """Mark a stream's answers as slow or quick. Call this only in the thread of `owner`."""
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

    # Other threads.

    def _enqueue(self, served: ServedStream, message: Buffer) -> None:
        """Pass a request to another thread."""
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
        owner, here = served.stream.owner, self._leader.owner
        if not has_thread:
            if owner is not None and here is not None and self._should_lead(owner, here):
                self._again(connection)
                # After the request was queued: the one that leads next may find others of it.
                leads = self._leader.pass_to(owner, here)
                self._hand_over(served)
                if not leads:
                    raise RelievedError
                return
            self._hand_over(served)
        if is_much and sum(one.waiting_bytes for one in list(connection.served)) > _MAX_AHEAD_BYTES:
            with connection.lock:
                served.call.finish(
                    "RESOURCE_EXHAUSTED",
                    "the client sent too many requests without waiting for the answers",
                )
            self.abandon(served)

    def _should_lead(self, owner: Owner, here: Owner) -> bool:
        """Return whether `owner`, whose world has a request, should lead instead of `here`."""
        if owner is here or not owner.is_quick:
            return False
        if self._answers != self._leader.answers:
            self._passed, self._answers = 0, self._leader.answers
        self._passed += 1
        if self._passed < _IN_A_ROW and not owner.is_to_lead(here):
            return False
        self._passed = 0
        return True

    def _go_on(self, served: ServedStream) -> None:
        """Pass a stream without an answering thread to the thread that must answer or close it."""
        with served.condition:
            if served.has_thread or served.is_closed:
                return
            served.has_thread = True
        self._hand_over(served)

    def _elsewhere(self, served: ServedStream, message: Buffer) -> None:
        """Hand a request to a thread that owns no worlds, ahead of the queued requests.

        Only the thread that answers the stream calls this method. It stops answering the stream.
        """
        with served.condition:
            served.has_thread = True
            served.waiting.appendleft(message)
            served.waiting_bytes += len(message) + _REQUEST_BYTES
        self._give_thread(served)

    def _hand_over(self, served: ServedStream) -> None:
        """Pass a stream to its owner or, if it has no owner, to a thread that owns no worlds.

        Only the thread that answers the stream, or that has set `has_thread`, calls this method.
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
        name = f"{self._leader.name} serves a stream"
        try:
            threading.Thread(
                target=self._serve_alone, args=(served,), name=name, daemon=True
            ).start()
        except RuntimeError:
            _log.exception("no thread can be started for %s", served.connection.address)
            with served.connection.lock:
                served.call.finish("RESOURCE_EXHAUSTED", "the server cannot start a thread")
            self._close_stream(served)

    def _serve_alone(self, served: ServedStream) -> None:
        """Answer requests until the stream ends, becomes idle or gets an owner."""
        with at_work():
            is_owned = False
            while True:
                if is_owned:
                    break
                message = self._next_request(served, True)
                if isinstance(message, _NoRequest):
                    break
                if not served.reply(served.answer(message), True):
                    self._close_stream(served)
                    return
                is_owned = served.stream.owner is not None
            if is_owned:
                self._hand_over(served)
                return
        if message is _NoRequest.OVER:
            self._end(served)

    def _serve_owned(self, served: ServedStream, owner: Owner) -> None:
        """In the thread of `owner`, answer one of a stream's requests or close the stream."""
        message = self._next_request(served, False)
        if isinstance(message, _NoRequest):
            if message is _NoRequest.OVER:
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

    def _next_request(self, served: ServedStream, may_linger: bool) -> Buffer | _NoRequest:
        """Return the next request, or the reason why there is none.

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
                    return _NoRequest.OVER
                if is_idle or not may_linger:
                    served.has_thread = False
                    return _NoRequest.GIVEN_UP
                is_quick = served.seconds < _QUICK_SECONDS and not served.stream.may_wait
                is_idle = is_quick or not served.condition.wait(_LINGER_SECONDS)
            # With the lock: the thread that receives the WINDOW_UPDATE checks `stalled` then.
            with connection.lock:
                if served.is_stalled:
                    connection.stalled.add(served)
                    served.has_thread = False
                    return _NoRequest.GIVEN_UP
            message = served.waiting.popleft()
            served.waiting_bytes -= len(message) + _REQUEST_BYTES
            if not served.waiting and served.call.assembler.is_held:
                with connection.lock:
                    served.call.hold(False)
                    connection.flush()
        return message
