"""Takes requests to another worker, and answers those that come from one.

Each forwarded stream has a pipe of its own between the two workers. A request goes in as it came,
the answer comes back. When either end is gone, so is the other.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time

from dm_env_rpc_client.server.processes.messages import hear, say
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.owners import require_no_owner
from dm_env_rpc_client.transports.server_streams import (
    OpenStream,
    Peer,
    ServerStream,
    StreamStatusError,
    answer_by_owner,
    close_by_owner,
)

_log = logging.getLogger("dm_env_rpc_client.server")

_TICK_SECONDS = 0.02


class WorkerGoneError(Exception):
    """The worker that a request is for has ended."""


class Link(ServerStream):
    """The way to another worker for the requests of one stream; a `ServerStream`.

    Args:
      pipe: its other end is at that worker, or on the way there.
    """

    may_wait = True
    owner = None

    def __init__(self, pipe: MessagePipe):
        self._pipe = pipe

    def answer(self, message: bytes) -> bytes:
        """Returns the answer of the worker to which it leads.

        Raises:
          WorkerGoneError: the worker has ended.
        """
        require_no_owner()
        answer: bytes
        try:
            say(self._pipe, message)
            (answer, status), _ = hear(self._pipe)
        except (OSError, EOFError) as error:
            raise WorkerGoneError from error
        if status is not None:
            raise StreamStatusError(*status)
        return answer

    def abandon(self) -> None:
        self._pipe.shut_down()

    def paced(self, is_slow: bool) -> None:
        """The worker of the world sees that itself."""

    def close(self) -> None:
        self._pipe.shut_down()
        self._pipe.close()


class Forwarded:
    """Answers the requests of streams of other workers, each in a thread of its own.

    Args:
      open_session: makes the server's end of a stream.
    """

    def __init__(self, open_session: OpenStream):
        self._open_session = open_session
        self._open: set[MessagePipe] = set()

    def adopt(self, descriptor: int, peer: Peer) -> None:
        """Answers on a pipe.

        Args:
          descriptor: this end of it.
          peer: the client.
        """
        pipe = MessagePipe.of(descriptor)
        name = f"dm_env_rpc forwarded serves {peer.address}"
        self._open.add(pipe)
        try:
            threading.Thread(target=self._serve, args=(pipe, peer), name=name, daemon=True).start()
        except RuntimeError:
            _log.exception("no thread can be started for %s", peer.address)
            self._close(pipe)

    def stop(self, deadline: float) -> None:
        """Waits until all streams have ended, and ends those that have not at a deadline.

        Args:
          deadline: in seconds of the monotonic clock.
        """
        while self._open and time.monotonic() < deadline:
            time.sleep(_TICK_SECONDS)
        for pipe in list(self._open):
            pipe.shut_down()

    def _serve(self, pipe: MessagePipe, peer: Peer) -> None:
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._close, pipe)
                stream = self._open_session(peer)
                stack.callback(close_by_owner, stream)
                watcher = threading.Thread(target=_watch, args=(pipe, stream), daemon=True)
                watcher.start()
                stack.callback(watcher.join)
                stack.callback(pipe.shut_down)
                with contextlib.suppress(OSError, EOFError):
                    _answer_all(pipe, stream)
        except BaseException:
            _log.exception("a forwarded stream failed")

    def _close(self, pipe: MessagePipe) -> None:
        pipe.close()
        self._open.discard(pipe)


def _watch(pipe: MessagePipe, stream: ServerStream) -> None:
    """Tells a stream when its client is gone: it may be waiting for others."""
    poll = select.poll()
    poll.register(pipe, select.POLLRDHUP)
    poll.poll()
    stream.abandon()


def _answer_all(pipe: MessagePipe, stream: ServerStream) -> None:
    while _answer(pipe, stream):
        pass


def _answer(pipe: MessagePipe, stream: ServerStream) -> bool:
    """Answers a request; returns whether the stream goes on."""
    (message,), _ = hear(pipe)
    answer, status = b"", None
    try:
        answer = answer_by_owner(stream, message)
    except StreamStatusError as error:
        status = error.code, str(error)
    except BaseException as error:
        _log.exception("a forwarded stream failed")
        status = "INTERNAL", f"the server failed: {type(error).__name__}"
    say(pipe, answer, status)
    return status is None
