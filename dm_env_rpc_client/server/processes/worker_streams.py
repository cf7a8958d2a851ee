"""The worker's side of a stream, which answers requests forwarded by the server's own process.

Each stream has its own pipe to the server's own process. When one side of a stream ends, so does
the other.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import select
import threading
import time
from collections.abc import Callable

from dm_env_rpc_client.server.processes.streams import ANSWER, STATUS, STEP
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.owner_threads import Owner, OwnerGoneError
from dm_env_rpc_client.system.polling import SelfPipe
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
    """The streams of a worker, each with its own thread.

    Args:
      open_session: opens the session that answers a stream.
    """

    def __init__(self, open_session: OpenStream):
        self._open_session = open_session
        self._open: set[MessagePipe] = set()

    def adopt(self, descriptor: int, peer: Peer) -> None:
        """Answer the requests that arrive on a pipe.

        Args:
          descriptor: this end of the pipe.
          peer: the client.
        """
        pipe = MessagePipe.of(descriptor)
        self._open.add(pipe)
        try:
            # A thread for each stream: a worker has few streams, and its worlds may compute for
            # long.
            name = f"dm_env_rpc serves {peer.address}"
            threading.Thread(target=self._serve, args=(pipe, peer), name=name, daemon=True).start()
        except RuntimeError:
            _log.exception("no thread can be started for %s", peer.address)
            self._close(pipe)

    def stop(self, deadline: float) -> None:
        """Wait until all streams have ended; at the deadline, end those that are left.

        Args:
          deadline: in seconds of the monotonic clock.
        """
        # Polled: streams end in threads of their own, and a stop is rare.
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
                # The stream's own thread may be in a step, or wait for other agents, and cannot
                # watch the pipe.
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
    """Notify a stream when its client disconnects: it might be waiting for other agents."""
    poll = select.poll()
    # Not POLLIN: requests that arrive are for the other thread.
    poll.register(pipe, select.POLLRDHUP)
    poll.poll()
    stream.abandon()


def _answer_all(pipe: MessagePipe, stream: ServerStream) -> None:
    """Answer requests until the stream has ended.

    Raises:
      EOFError, OSError: the client has disconnected.
    """
    while True:
        # The owner of the world reads the pipe itself while the stream is joined: one thread fewer
        # to wake for each step.
        message = _answer_at_owner(pipe, stream)
        if message is None:
            message = bytes(pipe.receive().message)
        if not _answer(pipe, stream, message, answer_by_owner):
            break


def _answer_at_owner(pipe: MessagePipe, stream: ServerStream) -> bytes | None:
    """Let the owner of the stream's world answer steps directly, without another thread.

    Returns:
      A request for this thread; None if the owner answers none, or no more.

    Raises:
      EOFError, OSError: the stream is over.
    """
    owner = stream.owner
    # Streams without a world, and worlds in the main thread, are answered through this thread.
    if owner is None or not owner.may_lead:
        return None
    try:
        return owner.call(_answer_steps, pipe, stream, owner)
    except OwnerGoneError:
        return None


def _answer_steps(pipe: MessagePipe, stream: ServerStream, owner: Owner) -> bytes | None:
    """Answer steps, and run calls that other threads queue in the meantime."""
    if owner.leads:
        return None
    bell = SelfPipe()
    try:
        poll = select.poll()
        # The bell wakes the owner for calls of other threads while it waits for the client.
        for each in (pipe, bell):
            poll.register(each, select.POLLIN)
        with owner.listening(bell.notify):
            owner.run_waiting(_run)
            while True:
                ready = poll.poll()
                if (bell.fileno(), select.POLLIN) in ready:
                    bell.drain()
                    owner.run_waiting(_run)
                    # A call of another thread, such as the removal of the world, has ended the
                    # join.
                    if stream.owner is not owner:
                        return None
                    continue
                message = bytes(pipe.receive().message)
                # Other requests may wait for other owners, which an owner must not do; this
                # stream's thread takes them.
                if message[:1] != STEP:
                    return message
                if not _answer(pipe, stream, message, _answer_here):
                    raise EOFError
    finally:
        bell.close()


def _run(call: Callable[[], None]) -> None:
    call()


def _answer_here(stream: ServerStream, message: bytes) -> bytes:
    return stream.answer(message)


def _answer(
    pipe: MessagePipe,
    stream: ServerStream,
    message: bytes,
    answer_to: Callable[[ServerStream, bytes], bytes],
) -> bool:
    """Answer a request, and return whether the stream continues."""
    try:
        answer = answer_to(stream, message)
    except StreamStatusError as error:
        status = error.code, str(error)
    except BaseException as error:
        # A defect: the session turns errors of environments and requests into answers.
        _log.exception("a stream failed")
        status = "INTERNAL", f"the server failed: {type(error).__name__}"
    else:
        pipe.send(ANSWER, answer)
        return True
    pipe.send(STATUS, pickle.dumps(status))
    return False
