"""Streams that have threads of their own: their answers take long, or wait for other streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dm_env_rpc_client.system.busy_wait import at_work
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
    """The threads of the streams of a listener.

    Args:
      start: starts a thread; RuntimeError if none can be started. Called with what the thread
        calls, a name and an argument.
      close_stream: closes a stream that is over.
    """

    def __init__(self, start: Callable[..., None], close_stream: Callable[[ServedStream], None]):
        self._start = start
        self._close_stream = close_stream

    def enqueue(self, served: ServedStream, message: bytearray | memoryview) -> bool:
        """Has a request answered by a thread of its stream.

        Args:
          served: the stream.
          message: the request.

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
        if not has_thread:
            self.give_thread(served)
        if is_much and sum(one.waiting_bytes for one in list(connection.served)) > _MAX_AHEAD_BYTES:
            with connection.lock:
                served.call.finish(
                    "RESOURCE_EXHAUSTED", "the client sent too many requests ahead of the answers"
                )
            return False
        return True

    def give_thread(self, served: ServedStream) -> None:
        """Starts a thread for a stream that has none."""
        with served.condition:
            if served.has_thread or served.is_closed:
                return
            served.has_thread = True
        try:
            self._start(self.serve_alone, "serves a stream", served)
        except RuntimeError:
            _log.exception("no thread can be started for %s", served.connection.address)
            with served.connection.lock:
                served.call.finish("RESOURCE_EXHAUSTED", "the server cannot start a thread")
            self._close_stream(served)

    def serve_alone(self, served: ServedStream) -> None:
        """Answers the requests of one stream until it is over, quick, or idle."""
        with at_work():
            self._serve_alone(served)

    def _serve_alone(self, served: ServedStream) -> None:
        while True:
            message = self._next_request(served)
            if message is None:
                if served.has_thread:
                    break
                return
            pace = served.pace
            begun, begin = pace.begin(), time.perf_counter()
            answer = served.answer(message)
            pace.end(begun, time.perf_counter() - begin, False)
            if not served.reply(answer, True):
                break
        if served.has_ended and not served.is_gone:
            with served.connection.lock:
                served.call.finish("OK")
                served.connection.flush()
        self._close_stream(served)

    def _next_request(self, served: ServedStream) -> bytearray | memoryview | None:
        """Waits for a request; None if there is none.

        Then `has_thread` is False if others are to go on with the stream.
        """
        connection = served.connection
        with served.condition:
            while not served.waiting:
                if served.has_ended or served.is_gone:
                    return None
                is_quick = served.pace.is_quick and not served.stream.may_wait
                if is_quick or not (
                    served.condition.wait(_LINGER_SECONDS)
                    or served.waiting
                    or served.has_ended
                    or served.is_gone
                ):
                    served.has_thread = False
                    return None
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
            self.give_thread(served)
