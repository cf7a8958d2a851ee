"""Takes requests to another worker, and answers those that come from one.

Each forwarded stream has a pipe of its own between the two workers. A request goes in as it came,
the answer comes back with a byte before it. When either end is gone, so is the other.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable

from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.transports.server_streams import (
    OpenStream,
    Peer,
    ServerStream,
    StreamStatusError,
)

__all__ = ["Forwarded", "Link", "WorkerGoneError"]

_log = logging.getLogger("dm_env_rpc_client.server")

_ANSWER, _STATUS = b"\0", b"\1"

_TICK_SECONDS = 0.02


class WorkerGoneError(Exception):
    """The worker that a request was forwarded to has ended."""


class Link:
    """The way to another worker for the requests of one stream; a `ServerStream`.

    Args:
      pipe: its other end is at that worker, or on the way there.
    """

    may_wait = True

    def __init__(self, pipe: MessagePipe):
        self._pipe = pipe

    def answer(self, message: bytes) -> bytes:
        """See `ServerStream.answer`.

        Raises:
          WorkerGoneError: the worker has ended.
        """
        try:
            self._pipe.send(message)
            answer = bytes(self._pipe.receive().message)
        except (OSError, EOFError) as error:
            raise WorkerGoneError from error
        if answer[:1] == _STATUS:
            code, _, text = answer[1:].decode().partition("\n")
            raise StreamStatusError(code, text)
        return answer[1:]

    def abandon(self) -> None:
        """See `ServerStream.abandon`."""
        self._pipe.shut_down()

    def close(self) -> None:
        """See `ServerStream.close`."""
        self._pipe.shut_down()
        self._pipe.close()


class Forwarded:
    """Answers the requests of streams of other workers, each in a thread of its own.

    Args:
      open_session: makes the server's end of a stream.
    """

    def __init__(self, open_session: OpenStream):
        self._open_session = open_session
        self._lock = threading.Lock()
        self._open: dict[int, tuple[MessagePipe, ServerStream]] = {}
        self._poll = select.epoll()
        self._start("watches", self._watch)

    def adopt(self, descriptor: int, peer: Peer) -> None:
        """Answers on a pipe.

        Args:
          descriptor: this end of it.
          peer: the client.
        """
        pipe = MessagePipe.of(descriptor)
        stream = self._open_session(peer)
        with self._lock:
            self._open[descriptor] = pipe, stream
        self._poll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            self._start(f"serves {peer.address}", self._serve, descriptor)
        except RuntimeError:
            _log.exception("no thread can be started for %s", peer.address)
            self._close(descriptor)

    def stop(self, deadline: float) -> None:
        """Waits until all streams have ended, and ends those that have not at a deadline.

        Args:
          deadline: in seconds of the monotonic clock.
        """
        while self._open and time.monotonic() < deadline:
            time.sleep(_TICK_SECONDS)
        with self._lock:
            for pipe, _ in self._open.values():
                pipe.shut_down()

    def _start(self, what: str, run: Callable[..., None], *arguments: int) -> None:
        threading.Thread(
            target=run, args=arguments, name=f"dm_env_rpc forwarded {what}", daemon=True
        ).start()

    def _serve(self, descriptor: int) -> None:
        pipe, stream = self._open[descriptor]
        try:
            with contextlib.suppress(OSError, EOFError):
                while _answer(pipe, stream):
                    pass
        finally:
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        with self._lock:
            pipe, stream = self._open.pop(descriptor)
            pipe.close()  # Removes it from the poll as well.
        try:
            stream.close()
        except BaseException:
            _log.exception("closing a forwarded stream failed")

    def _watch(self) -> None:
        """Tells streams whose clients are gone: they may be waiting for others."""
        while True:
            for descriptor, _ in self._poll.poll():
                # With the lock, so that the number does not belong to another pipe by then.
                with self._lock:
                    found = self._open.get(descriptor)
                    if found is not None:
                        found[1].abandon()


def _answer(pipe: MessagePipe, stream: ServerStream) -> bool:
    """Answers a request; returns whether the stream goes on."""
    message = bytes(pipe.receive().message)
    try:
        answer = stream.answer(message)
    except StreamStatusError as error:
        pipe.send(_STATUS, f"{error.code}\n{error}".encode(errors="replace"))
        return False
    except BaseException as error:
        _log.exception("a forwarded stream failed")
        text = f"INTERNAL\nthe server failed: {type(error).__name__}"
        pipe.send(_STATUS, text.encode())
        return False
    pipe.send(_ANSWER, answer)
    return True
