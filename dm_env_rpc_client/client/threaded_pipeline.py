"""The pipeline for threads: requests and answers on one stream, shared by any number of threads.

There is no reader thread. One of the threads that wait for an answer leads: it reads and gives
each answer to its request, and when it has its own answer it wakes a sleeping thread, which
leads from then on. So a single thread that sends and waits reads its own answer, without a
hand-over between threads. `result()` of a future reads in the same way. Only callbacks of futures,
`asyncio.wrap_future` and `concurrent.futures.wait` have a thread that reads for them; it starts
when it is needed and ends when it has had nothing to do for a second. It also runs the callbacks:
in the thread that reads, a callback that waits for another request would stop the reading.

Locks are plain `threading.Lock`s in `with` statements. A KeyboardInterrupt cannot leave one
locked, as it can a Condition or anything built on one. An interrupt anywhere between the writing
of a request and its outcome poisons the pipeline.
"""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

from dm_env_rpc_client.client import server_ends
from dm_env_rpc_client.client.remains import Remains
from dm_env_rpc_client.client.request_future import FuturesThread, RequestFuture
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    ProtocolError,
)
from dm_env_rpc_client.protocol.observing import pipeline_to
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.system import forking, locks
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.streams import SharedSocket, Stream

__all__ = ["ThreadedPipeline"]

_log = logging.getLogger(__name__)

_THREAD_END_SECONDS = 0.5
_LOOK_SECONDS = 1.0
"""How often a sleeping thread checks whether the pipeline was poisoned."""

_SEND_SECONDS = 0.02
"""How often a thread that sends checks whether the reading thread has stopped reading."""


class ThreadedPipeline:
    """Sends requests on a stream and waits for their answers.

    Args:
      stream: an open stream, which the pipeline closes.

    Attributes:
      remains: for a finalizer.
    """

    def __init__(self, stream: Stream):
        self.address = stream.address
        self._stream = stream
        self._pipeline = pipeline_to(stream.address)
        self._is_closed = False
        self._prepare()
        self.remains = Remains(stream, self.futures.wake)
        forking.register(self)

    def _prepare(self) -> None:
        self._pid = os.getpid()
        # Held while a request is pushed and written, so that both happen in one order.
        self._write_lock = make_lock()
        # Held briefly: protects the FIFO while it is poisoned, and the sleepers.
        self._mutex = make_lock()
        # Held by the thread that reads.
        self._reading = make_lock()
        self._leader: int | None = None
        self._sleepers: dict[threading.Lock, None] = {}
        self._last_answered: Pending | None = None
        self.futures = FuturesThread(f"dm_env_rpc futures of {self.address}")

    @property
    def poisoned_by(self) -> BaseException | None:
        """The first error that made the stream unusable; None while it is usable."""
        return self._pipeline.poisoned_by

    def __len__(self) -> int:
        """The number of pending requests."""
        return len(self._pipeline)

    def call(self, pending: Pending) -> Any:
        """Sends a request and returns or raises its outcome."""
        try:
            self.start(pending)
            return self.wait(pending)
        except BaseException as error:
            self.interrupted(error, (pending,))
            raise

    def interrupted(self, error: BaseException, pendings: Iterable[Pending] | None = None) -> None:
        """Poisons the pipeline if an error has interrupted the wait for a request.

        Args:
          error: the error.
          pendings: the requests that were waited for, see `Pipeline.is_interrupted`; None if it is
            known that an answer is lost.
        """
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        if self._pipeline.is_interrupted(error, pendings):
            self.poison(error)

    def start(self, *pendings: Pending) -> None:
        """Writes requests together; blocks while pending requests are at their limit.

        Raises:
          ConnectionClosedError, ConnectionLostError: the stream is unusable.
          ProtocolError: the server sent an answer while no request was pending.
          DeadlineExceededError: the limit was not left before the deadline of a request. It and
            the ones after it were not sent; the connection stays usable.
        """
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        pipeline, stream, unsent = self._pipeline, self._stream, pendings
        oldest = None
        try:
            while True:
                if oldest is not None:
                    self._await(oldest, unsent[0].deadline)
                    if oldest.outcome is None:
                        raise pipeline.late(unsent[0])
                with self._write_lock:
                    if not pipeline.fifo and stream.has_unread():
                        pipeline.check_usable()
                        self._read_unasked()
                    with self._mutex:
                        messages = pipeline.push(unsent)
                    has_unsent = bool(messages) and stream.write(*messages)
                unsent = unsent[len(messages) :]
                if not unsent:
                    break
                oldest = pipeline.oldest
            if has_unsent:
                self._send_rest(pendings[-1])
        except DeadlineExceededError:
            raise
        except (ProtocolError, ConnectionLostError, ConnectionClosedError) as error:
            # Outside the write lock, because the threads that it wakes may send.
            if self.poisoned_by is not None:
                # Another thread closed it meanwhile: what was read then is not the cause.
                self._pipeline.check_usable()
            self.poison(error)
            if isinstance(error, ConnectionLostError):
                error.server_end = self._pipeline.server_end
            raise
        except BaseException as error:
            if pendings[0].is_sent:
                self.poison(error)
            raise

    def has_sent(self, pending: Pending) -> None:
        """Takes a request that was written when the stream was opened, as the first."""
        self._pipeline.push((pending,))

    def finish(self) -> None:
        """Tells the server that no more requests follow, and none may be started."""
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        self._pipeline.check_usable()
        with self._write_lock:
            self._stream.finish()

    def wait(self, pending: Pending) -> Any:
        """Returns or raises the outcome of a request that was started."""
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        try:
            # As in `_await`, without the call.
            if pending.outcome is not None or self._lead(pending, pending.deadline):
                if self._sleepers:
                    self._wake_sleeper()
            else:
                self._await(pending, pending.deadline)
        except BaseException as error:
            self.poison(error)
            raise
        if pending.outcome is None:
            self._fail_late(pending)
        assert pending.outcome is not None
        result, failure = pending.outcome  # `result`, without the call.
        if failure is not None:
            raise failure
        return result

    def poll(self, pending: Pending) -> bool:
        """Reads the answers that have arrived; returns whether `wait` would not block."""
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        if pending.outcome is None:
            try:
                self._await(pending, 0.0)
            except BaseException as error:
                self.poison(error)
                raise
        return pending.outcome is not None or (
            pending.deadline is not None and time.monotonic() >= pending.deadline
        )

    def has_unread(self) -> bool:
        """Whether there is something to read; see `Stream.has_unread`."""
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        return self._stream.has_unread()

    def shared_socket(self) -> tuple[SharedSocket, int] | None:
        """Returns the socket that the stream shares, and its number there; None if none."""
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        return self._stream.shared_socket()

    def fileno(self) -> int:
        """Returns a descriptor to select on; see `Stream.fileno`."""
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        return self._stream.fileno()

    def submit(self, pending: Pending) -> concurrent.futures.Future[Any]:
        """Sends a request and returns a future of its outcome."""
        try:
            self.start(pending)
            return RequestFuture(self, pending)
        except BaseException as error:
            self.interrupted(error, (pending,))
            raise

    def wait_for_future(self, pending: Pending, timeout: float | None) -> None:
        """Returns when the outcome is known, or after `timeout` seconds.

        After the deadline of the request the pipeline is poisoned, as by `wait`. An interrupted
        wait poisons it only if this thread was reading.
        """
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        deadline = pending.deadline
        if timeout is not None:
            end = time.monotonic() + timeout
            deadline = end if deadline is None else min(end, deadline)
        self._await(pending, deadline)
        is_late = pending.deadline is not None and time.monotonic() >= pending.deadline
        if is_late and pending.outcome is None:
            self._fail_late(pending)

    def poison(self, cause: BaseException) -> None:
        """Makes the connection unusable, fails pending requests and ends the stream."""
        try:
            if self.poisoned_by is None:
                server = server_ends.watched(self.address, cause)
                self._pipeline.server_end = None if server is None else server.end()
            self._end(cause)
        except BaseException:
            self._end(cause)  # An interrupt must not leave other threads waiting.
            raise

    def _end(self, cause: BaseException) -> None:
        is_first = self.remains.cause is None
        self._fail_pending(cause)
        self._stream.abort()
        self.futures.end()
        if is_first:
            name = type(cause).__name__
            _log.info("the connection to %s is unusable: %s: %s", self.address, name, cause)

    def close(self, timeout: float) -> None:
        """Ends the stream, gracefully if no request is pending. Never raises."""
        if os.getpid() != self._pid:
            self.after_fork_in_child()
        if self._is_closed:
            return
        closed = ConnectionClosedError(f"the connection to {self.address} was closed")
        was_usable = self._pipeline.poisoned_by is None
        try:
            failed = self._fail_pending(closed)
            if was_usable:
                _log.debug("%s", closed)
            if was_usable and not failed:
                self._stream.close(timeout)
        finally:
            self.poison(closed)
            self._is_closed = True
        self.futures.join(_THREAD_END_SECONDS)

    def after_fork_in_child(self) -> None:
        """The connection is the parent's: everything fails here, and nothing is seen there."""
        parent = self._pid
        self._prepare()
        self._is_closed = True
        self._stream.abandon()
        lost = ConnectionLostError(
            f"it belongs to process {parent}, which forked this one; open a connection of its own "
            "in each process"
        )
        for pending in self._pipeline.poison(lost):
            for waiter in pending.waiters:
                if isinstance(getattr(waiter, "__self__", None), RequestFuture):
                    waiter.__self__.after_fork_in_child()  # type: ignore[attr-defined]
            pending.wake()

    def _send_rest(self, pending: Pending) -> None:
        """Reads while the server has not received all of a request; otherwise both could wait."""
        while self._stream.has_unsent() and pending.outcome is None:
            if self._lead(pending, pending.deadline, until_sent=True):
                self._wake_sleeper()
                if pending.deadline is not None and time.monotonic() >= pending.deadline:
                    return  # `wait` raises the error.
            else:
                self._stream.send_rest(_SEND_SECONDS)

    def _read_unasked(self) -> None:
        """Raises the error for an answer, or the end, that arrived while no request was pending."""
        message = self._stream.read(0)
        if message is not None:
            self._pipeline.answer(message)

    def _await(self, pending: Pending, deadline: float | None) -> None:
        """Returns when `pending` is done or the deadline has passed."""
        if pending.outcome is not None or self._lead(pending, deadline):
            if self._sleepers:
                self._wake_sleeper()
            return
        asleep = make_lock()
        asleep.acquire()
        waiter = functools.partial(_release, asleep)
        pending.waiters.append(waiter)
        with self._mutex:
            self._sleepers[asleep] = None
        try:
            # The leader may have finished before it could see this sleeper: try once more.
            while True:
                if pending.outcome is not None or self._lead(pending, deadline):
                    break
                remaining = _LOOK_SECONDS if deadline is None else _remaining(deadline)
                is_awake = asleep.acquire(timeout=min(remaining, _LOOK_SECONDS))
                if not is_awake and remaining <= _LOOK_SECONDS and deadline is not None:
                    break
                # An interrupt may have ended a thread between the poisoning and the waking.
                self._fail_if_poisoned(pending)
        finally:
            with self._mutex:
                self._sleepers.pop(asleep, None)
            try:
                # A thread that polls waits for the same request many times.
                pending.waiters.remove(waiter)
            except ValueError:
                pass  # It was called.
            # This thread may have been chosen to lead just as it stopped waiting.
            self._wake_sleeper()

    def _fail_if_poisoned(self, pending: Pending) -> None:
        if self.poisoned_by is not None and pending.outcome is None:
            self._pipeline.fail(pending)

    def _lead(self, pending: Pending, deadline: float | None, until_sent: bool = False) -> bool:
        """Reads until `pending` is done, sent or late; returns False if another thread reads."""
        me = threading.get_ident()
        # What interprets an answer runs in the thread that reads, and may itself wait: a reward
        # that an adaptor computes may read a property.
        is_nested = self._leader == me
        held: list[bool] = []
        pipeline = self._pipeline
        try:
            if not is_nested:
                locks.take(self._reading, held)
                if not held:
                    return False
                self._leader = me
            is_over = False
            while True:
                if is_over or pending.outcome is not None:
                    break
                if pipeline.poisoned_by is not None:
                    pipeline.fail(pending)
                    break
                # In turns, to look at `poisoned_by`: a thread that was interrupted may have set it
                # and not have aborted the stream.
                remaining = _LOOK_SECONDS
                if deadline is not None:
                    remaining = min(_LOOK_SECONDS, _remaining(deadline))
                message = self._stream.read(remaining, until_sent)
                if message is None:
                    is_over = remaining < _LOOK_SECONDS or (
                        until_sent and not self._stream.has_unsent()
                    )
                else:
                    answered = pipeline.answer(message)
                    # Set before it is removed from the FIFO, so that its waiter is woken after an
                    # interrupt.
                    self._last_answered = answered
                    with self._mutex:
                        pipeline.retire(answered)
                    if answered.waiters:
                        answered.wake()
                    message = None  # It may be large, and the next one may be long in coming.
        except DmEnvRpcClientError as error:
            self.poison(error)
        except BaseException as error:
            # An answer may have been read and dropped, whichever request it was for.
            self.poison(error)
            raise
        finally:
            if held:
                self._leader = None
                self._reading.release()
        return True

    def _wake_sleeper(self) -> None:
        """Wakes one sleeping thread, which leads unless another thread does by then."""
        if self._sleepers and self._leader is None:
            with self._mutex:
                sleeper = next(iter(self._sleepers), None)
            if sleeper is not None:
                _release(sleeper)

    def _fail_pending(self, cause: BaseException) -> list[Pending]:
        with self._mutex:
            failed = self._pipeline.poison(cause)
        self.remains.cause = self.remains.cause or type(cause)
        for pending in failed:
            pending.wake()
        if self._last_answered is not None:
            self._last_answered.wake()
        return failed

    def _fail_late(self, pending: Pending) -> None:
        late = self._pipeline.late(pending)
        pending.finish(None, late)
        self.poison(late)
        pending.wake()


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _release(lock: threading.Lock) -> None:
    try:
        lock.release()
    except RuntimeError:
        pass  # It is awake already.
