"""The streams of a listener: how they are opened, answered by the thread that leads, and closed.

Each method that may take long raises RelievedError if another thread leads when it is done.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable

from dm_env_rpc_client.system.busy_wait import processors
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.owners import ElsewhereError, Owner
from dm_env_rpc_client.system.waiting import InterruptibleCondition
from dm_env_rpc_client.transports.http2.protocol.pace import HICCUP_SECONDS, SLOW_SECONDS
from dm_env_rpc_client.transports.http2.protocol.server_half import ServerCall
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection
from dm_env_rpc_client.transports.http2.server.leader import TICK_SECONDS, Leader, RelievedError
from dm_env_rpc_client.transports.http2.server.served_stream import ServedStream
from dm_env_rpc_client.transports.http2.server.stream_threads import StreamThreads, note_pace
from dm_env_rpc_client.transports.server_streams import (
    ListenerOptions,
    Peer,
    StreamStatusError,
    full_error,
)
from dm_env_rpc_client.transports.services.table import open_own
from dm_env_rpc_client.transports.status import PROCESS

_log = logging.getLogger(__name__)


class Streams:
    """The streams. Only the thread that leads calls the methods.

    Args:
      options: what is served.
      leader: the lead of the listener.
      changed: is told when `count` becomes less.
      start: as of `StreamThreads`.
      lead: has an owner lead, or a new one if there is None; RuntimeError if no thread can be
        started.
      again: has the thread that leads look at a connection again.
      command: has the thread that leads do something, as soon as it can.

    Attributes:
      count: how many streams are open, those of the services that every server has left out.
      threads: of those whose answers take long.
    """

    def __init__(
        self,
        options: ListenerOptions,
        leader: Leader,
        changed: InterruptibleCondition,
        start: Callable[..., None],
        lead: Callable[[Owner | None], None],
        again: Callable[[ServerConnection], None],
        command: Callable[[Callable[[], None]], None],
    ):
        self.count = 0
        self._counting = make_lock()
        self.threads = StreamThreads(start, self._close, self._became_quick)
        self._options = options
        self._leader = leader
        self._changed = changed
        self._lead = lead
        self._again = again
        self._command = command
        self._may_stay = options.processes > 1 and options.processes >= processors()

    def open(self, connection: ServerConnection, call: ServerCall) -> None:
        """Opens a stream, or ends the call with the reason why not."""
        try:
            served = self._served(connection, call)
        except StreamStatusError as error:
            with connection.lock:
                call.finish(error.code, str(error))
        except BaseException:
            _log.exception("opening a stream of %s failed", connection.address)
            with connection.lock:
                call.finish("INTERNAL", "the server failed to open the stream")
        else:
            call.shell = served
            if served is not None:
                connection.served.add(served)

    def _served(self, connection: ServerConnection, call: ServerCall) -> ServedStream | None:
        if call.is_over:
            return None
        own = open_own(call.path)
        if own is not None:
            served = ServedStream(connection, call, own.stream)
            served.is_unary, served.stays = own.is_unary, own.stays
            return served
        if call.path != PROCESS:
            raise StreamStatusError("UNIMPLEMENTED", f"no such method; this server has {PROCESS}")
        options = self._options
        if self.count >= options.max_streams:
            full = full_error(options.max_streams)
            options.refused(connection.address, f"{full.code}: {full}")
            raise full
        stream = options.open_stream(Peer(connection.address, call.metadata))
        served = ServedStream(connection, call, stream, self._may_stay)
        served.is_counted = connection.is_known = True
        with connection.lock:
            call.accept()
        with self._counting:
            self.count += 1
        return served

    def request(self, served: ServedStream, message: bytearray | memoryview) -> None:
        """Has a request answered."""
        if served.call.is_over:
            return
        if (
            served.has_thread
            or served.waiting
            or (served.stream.owner is not self._leader.owner and not self._is_for_all(served))
            or served.stream.may_wait
            or served.is_stalled
        ):
            self._enqueue(served, message)
        else:
            self._answer_inline(served, message)

    def _is_for_all(self, served: ServedStream) -> bool:
        """Whether any thread may answer a stream, and at once."""
        return served.stream.owner is None and not served.pace.is_slow

    def _enqueue(self, served: ServedStream, message: bytearray | memoryview) -> None:
        owner, leading = served.stream.owner, self._leader.owner
        if (
            owner is None
            or leading is None
            or not _is_to_lead(owner, leading)
            or served.has_thread
            or served.is_stalled
        ):
            if not self.threads.enqueue(served, message):
                self.abandon(served)
            return
        self._again(served.connection)
        # When the request is queued: the one that leads next may find others of the stream.
        self.threads.enqueue(served, message, functools.partial(self._give_lead, owner, leading))
        if self._leader.owner is not leading:
            raise RelievedError

    def _became_quick(self, owner: Owner) -> None:
        """Has an owner lead whose answers do not take long any more; called by that."""
        self._command(functools.partial(self._offer_lead, owner))

    def _offer_lead(self, owner: Owner) -> None:
        leading = self._leader.owner
        if leading is None or not _is_to_lead(owner, leading):
            return
        self._give_lead(owner, leading)
        if self._leader.owner is not leading:
            raise RelievedError

    def _give_lead(self, to: Owner, leading: Owner) -> None:
        self._leader.give_up()
        try:
            self._lead(to)
        except RuntimeError:  # It has ended.
            self._leader.take(leading)

    def _answer_inline(self, served: ServedStream, message: bytearray | memoryview) -> None:
        leader = self._leader
        owner = leader.owner
        leader.enter(served, True)
        pace = served.pace
        begun = pace.begin() if pace.may_stay else None
        begin = time.perf_counter()
        try:
            answer = served.answer(message)
        except ElsewhereError:
            leads = leader.leave(owner)
            self.threads.elsewhere(served, message)
            if not leads:
                raise RelievedError from None
            return
        took = time.perf_counter() - begin
        if took > HICCUP_SECONDS:
            took = HICCUP_SECONDS
        if begun is None:
            pace.seconds += (took - pace.seconds) / 8  # `end`, without the call.
        else:
            pace.end(begun, took, True)
        if leader.leave(owner):
            if not served.reply(answer, False):
                self._close_inline(served)
            elif pace.seconds > SLOW_SECONDS and served.stream.owner is owner:
                self._look_slow(served)
            return
        # The worlds are what this thread keeps. It gets the lead back if this was an exception.
        is_kept = owner is not None and served.stream.owner is owner
        if not is_kept:
            pace.seconds = max(pace.seconds, TICK_SECONDS)
        if served.reply(answer, True):
            self.threads.hand_over(served)
        else:
            self._close(served)
        if owner is not None and is_kept:
            note_pace(served, owner)
            if not owner.slow:
                self._became_quick(owner)
        raise RelievedError

    def _look_slow(self, served: ServedStream) -> None:
        """Has another thread lead if worlds of this one are slow, so that others do not wait."""
        owner = served.stream.owner
        assert owner is not None, "this thread is the owner"
        note_pace(served, owner)
        if served not in owner.slow:
            return
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
        self._close_inline(served)

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
        self._close_inline(served)

    def _close_inline(self, served: ServedStream) -> None:
        """Closes a stream that no thread answers."""
        owner, leading = served.stream.owner, self._leader.owner
        if served.stream.may_wait or not (owner is None or owner is leading):
            served.is_gone = True
            self.threads.go_on(served)
            return
        self._leader.enter(served, False)
        self._close(served)
        if not self._leader.leave(leading):
            raise RelievedError

    def _close(self, served: ServedStream) -> None:
        with served.condition:
            if served.is_closed:
                return
            served.is_closed = True
            served.waiting.clear()
        served.call.shell = None
        connection = served.connection
        with connection.lock:
            connection.stalled.discard(served)
        if served.stream.owner is not None:
            served.stream.owner.slow.discard(served)
        try:
            served.stream.close()
        except BaseException:
            _log.exception("closing a stream of %s failed", connection.address)
        connection.served.discard(served)
        if served.is_counted:
            with self._counting:
                self.count -= 1
            self._changed.notify_all()


def _is_to_lead(owner: Owner, leading: Owner) -> bool:
    """Whether another lead is of use: it spares the change of threads of most requests."""
    return (
        owner is not leading
        and leading.holds == 1  # The lead.
        and owner.holds > 0
        and not owner.slow
        and owner.may_lead
    )
