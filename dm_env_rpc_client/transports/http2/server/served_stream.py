"""A stream that is served, and how it is answered."""

from __future__ import annotations

import collections
import logging
import threading

from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.owners import ElsewhereError
from dm_env_rpc_client.transports.http2.protocol.pace import Pace
from dm_env_rpc_client.transports.http2.protocol.server_half import ServerCall
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection
from dm_env_rpc_client.transports.server_streams import ServerStream, StreamStatusError

_log = logging.getLogger(__name__)


class ServedStream:
    """A stream and the call that it answers. `condition` protects what two threads use.

    Attributes:
      waiting: requests that its thread is to answer.
      has_thread: whether another thread than the one that leads answers, or is to.
      has_ended: whether the client sends no more.
      is_gone: whether the client is gone.
      stays: whether it goes on when the client sends no more.
      pace: how long its answers take.
      waiting_bytes: what `waiting` takes.
    """

    __slots__ = (
        "_blocked",
        "call",
        "condition",
        "connection",
        "has_ended",
        "has_thread",
        "is_closed",
        "is_counted",
        "is_gone",
        "is_unary",
        "pace",
        "stays",
        "stream",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self,
        connection: ServerConnection,
        call: ServerCall,
        stream: ServerStream,
        may_stay: bool = False,
    ):
        self.connection = connection
        self.call = call
        self._blocked = connection.half.framing.sending.blocked
        self.stream = stream
        self.condition = threading.Condition(make_lock())
        self.waiting: collections.deque[bytearray | memoryview] = collections.deque()
        self.has_thread = self.has_ended = self.is_gone = self.is_closed = False
        self.is_unary = self.is_counted = self.stays = False
        self.pace = Pace(may_stay)
        self.waiting_bytes = 0

    @property
    def is_stalled(self) -> bool:
        """Whether it gets no answers, because the client does not take earlier ones."""
        connection = self.connection
        if connection.unsent and connection.is_clogged:
            return True
        # Most often nothing waits for a window, which takes no call to see.
        return bool(self._blocked) and self.call.has_unsent

    def answer(self, message: bytearray | memoryview) -> bytes | StreamStatusError:
        """Returns the answer to a request, or the error that ends the stream.

        Raises:
          ElsewhereError: as `ServerStream.answer`.
        """
        try:
            return self.stream.answer(bytes(message))
        except StreamStatusError as error:
            return error
        except ElsewhereError:
            raise
        except BaseException as error:
            # Also SystemExit: an environment must not end the thread that serves the others.
            _log.exception("a stream of %s failed", self.connection.address)
            return StreamStatusError("INTERNAL", f"the server failed: {type(error).__name__}")

    def reply(self, answer: bytes | StreamStatusError, at_once: bool) -> bool:
        """Queues an answer.

        Args:
          answer: what `answer` returned.
          at_once: whether to send it, too.

        Returns:
          Whether the stream goes on.
        """
        connection, call = self.connection, self.call
        with connection.lock:
            if isinstance(answer, StreamStatusError):
                call.finish(answer.code, str(answer))
            else:
                call.send(answer)
                if connection.unsent:
                    connection.added(len(answer))
                if self.is_unary:
                    call.finish("OK")
            if at_once:
                connection.flush()
        return not (self.is_unary or isinstance(answer, StreamStatusError))
