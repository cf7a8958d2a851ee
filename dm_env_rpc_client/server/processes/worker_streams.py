"""Answers, in a worker, the requests that the server's own process passes on.

Each stream has a pipe of its own to that process. When either end is gone, so is the other.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import select
import threading
import time

from dm_env_rpc_client.server.processes.streams import ANSWER, STATUS
from dm_env_rpc_client.system.message_pipe import MessagePipe
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


class WorkerStreams:
    """Answers the requests of streams, each in a thread of its own.

    Args:
      open_session: makes what answers a stream.
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
        self._open.add(pipe)
        try:
            name = f"dm_env_rpc serves {peer.address}"
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
            _log.exception("a stream of %s failed", peer.address)

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
    message = bytes(pipe.receive().message)
    try:
        answer = answer_by_owner(stream, message)
    except StreamStatusError as error:
        status = error.code, str(error)
    except BaseException as error:
        _log.exception("a stream failed")
        status = "INTERNAL", f"the server failed: {type(error).__name__}"
    else:
        pipe.send(ANSWER, answer)
        return True
    pipe.send(STATUS, pickle.dumps(status))
    return False
