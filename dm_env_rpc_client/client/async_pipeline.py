"""The pipeline for coroutines: requests and answers on one stream in one event loop.

The event loop watches the socket even while no request is pending, so it notices an unrequested
answer immediately. The event loop's callback refers to the pipeline and not to the connection, so
an unreferenced connection can be freed.

The pipeline for threads uses the same kind of stream, but is more complicated: its threads take
turns reading the stream while they wait, whereas here only the event loop reads.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import logging
import os
import select
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from dm_env_rpc_client.client import server_ends
from dm_env_rpc_client.client.base_connection import Pipelines, keep_alive
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DmEnvRpcClientError,
)
from dm_env_rpc_client.protocol.observing import pipeline_to
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.system import forking
from dm_env_rpc_client.system.waiting import in_thread
from dm_env_rpc_client.transports.streams import AsyncStream

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""The interval, in seconds, between checks for a silent server while an answer is awaited."""

_AGAIN_SECONDS = 0.01
"""The polling interval, in seconds, while a stream has no event to wait for, for instance because
a recorder has fallen behind."""


class AsyncPipeline:
    """A pipeline that sends requests on a client's stream and matches answers with them.

    Args:
      stream: an open stream, which the pipeline closes.
      keepalive_timeout: as for `connect`.
    """

    def __init__(self, stream: AsyncStream, keepalive_timeout: float | None = None):
        self.address = stream.address
        self._stream = stream
        self._pipeline = pipeline_to(stream.address)
        self._pipeline.keepalive_timeout = keepalive_timeout
        keep_alive(stream, Pipelines({0: self._pipeline}))
        self._pid = os.getpid()
        # Requests that wait until the number and the size of pending ones permit them.
        self._line: collections.deque[asyncio.Future[None]] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        # What the loop watches the stream's descriptor for.
        self._events = 0
        self._descriptor = -1
        # Calls `_on_ready` without an event of the descriptor, and `_look` once a second.
        self._soon: asyncio.Handle | None = None
        self._looking: asyncio.TimerHandle | None = None
        # Continues an ended stream elsewhere, or finds out how the server ended.
        self._ending: asyncio.Task[None] | None = None
        # Done when a closed stream has ended.
        self._over: asyncio.Future[None] | None = None
        self._is_aborted = self._is_closed = False
        forking.register(self, AsyncPipeline.after_fork_in_child)

    @property
    def poisoned_by(self) -> BaseException | None:
        """The first error that made the stream unusable, or None while it is usable."""
        return self._pipeline.poisoned_by

    def __len__(self) -> int:
        """The number of pending requests."""
        return len(self._pipeline)

    def begin(self) -> None:
        """Start reading. Call this method from within the event loop."""
        if self._loop is None and not self._is_closed:
            self._loop = asyncio.get_running_loop()
            # The descriptor does not show bytes that were received with the greeting.
            self._soon = self._loop.call_soon(self._on_ready)

    async def start(
        self, pending: Pending, timeout: float | None, is_written: bool = False
    ) -> None:
        """Send a request, waiting first if too many requests are pending.

        Args:
          pending: the request.
          timeout: time limit for the answer, in seconds; None for no limit.
          is_written: whether the stream was opened with the request.
        """
        self._check_process()
        self.begin()
        pipeline = self._pipeline
        # The answer to a request that is written already may have arrived with the greeting.
        if (
            not (is_written or pipeline.fifo)
            and pipeline.poisoned_by is None
            and self._stream.has_unread()
        ):
            # An unrequested answer arrived, and the loop has not run since.
            self._on_ready()
        pipeline.check_usable()
        timer = None
        if timeout is not None:
            # Before the wait for room: waiting in line counts against the deadline.
            timer = asyncio.get_running_loop().call_later(timeout, self._expire, pending)
            pending.waiters.append(timer.cancel)
        try:
            if self._line or not pipeline.has_room(pending.size):
                await self._wait_for_room(pending)
            if pending.outcome is None:
                (message,) = pipeline.push([pending])  # There is room.
                if not is_written and self._stream.write(message) and self._ending is None:
                    self._watch(self._stream.events())
                if self._looking is None:
                    self._looking = self._later(_LOOK_SECONDS, self._look)
                self._admit_next()
        except BaseException:
            if timer is not None:
                timer.cancel()
            raise

    async def wait(self, pending: Pending) -> Any:
        """Wait for the outcome of a pending request, and return or raise it."""
        self._check_process()
        if pending.outcome is None:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            pending.waiters.append(functools.partial(_set, answered))
            try:
                await answered
            except BaseException as error:
                # A cancelled wait leaves its answer behind, and the next request would get it.
                self.interrupted(error, (pending,))
                raise
        return pending.result()

    def interrupted(self, error: BaseException, pendings: Iterable[Pending] | None = None) -> None:
        """Poison the pipeline if an error interrupted the wait for an answer.

        Args:
          error: the error.
          pendings: the awaited requests (see `Pipeline.is_interrupted`); None if an answer is
            known to be lost.
        """
        self._check_process()
        if self._pipeline.is_interrupted(error, pendings):
            self._poison(error)

    async def close(self, timeout: float) -> None:
        """End the stream, gracefully if no request is pending. Never raises."""
        self._check_process()
        if self._is_closed:
            return
        self.begin()
        self._is_closed = True
        # With pending requests the stream is cancelled: their answers are no longer needed.
        was_usable = self.poisoned_by is None
        is_idle = was_usable and not len(self._pipeline)
        closed = ConnectionClosedError(f"the connection to {self.address} was closed")
        self._poison(closed, keep_stream=is_idle)
        if was_usable:
            _log.debug("%s", closed)
        try:
            if is_idle:
                self._over = asyncio.get_running_loop().create_future()
                self._stream.finish()
                self._on_ready()
                await asyncio.wait((self._over,), timeout=timeout)
        finally:
            self._abort()
        await self._stream.closed()

    def forget(self) -> None:
        """End the stream of an unreferenced connection. Any thread can call this method."""
        loop = self._loop
        if self._is_closed or os.getpid() != self._pid:
            return
        if loop is None or loop.is_closed():
            self.end_at_exit()
            return
        self._is_closed = True
        freed = ConnectionClosedError(f"the connection to {self.address} was freed")
        loop.call_soon_threadsafe(self._poison, freed)

    @property
    def is_own(self) -> bool:
        """Whether this process, and not the process that forked it, owns the stream."""
        return os.getpid() == self._pid and not self._is_closed

    def end_at_exit(self) -> None:
        """End the stream after its event loop has stopped, for example at interpreter exit."""
        if self._loop is not None and self._loop.is_running():
            self.forget()  # In a thread that still runs.
            return
        try:
            self._abort()
        except RuntimeError:
            pass  # The loop of a grpc.aio.Channel is closed.

    def after_fork_in_child(self) -> None:
        """Fail all requests in a forked child without affecting the parent's stream."""
        parent, self._pid = self._pid, os.getpid()
        self._is_closed = True
        # First: the selector is shared with the parent, and a socket closed here is not in it.
        self._stream.abandon()
        with contextlib.suppress(OSError):
            self._watch(0)
        lost = ConnectionLostError(
            f"it belongs to process {parent}, which forked this one; open a connection of its own "
            "in each process"
        )
        self._poison(lost, keep_stream=True)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            self.after_fork_in_child()

    def _on_ready(self) -> None:
        """Receive some or all of the available bytes, and match answers with requests."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._is_aborted or self._ending is not None:
            return
        pipeline, stream = self._pipeline, self._stream
        try:
            has_more = stream.receive()
            while True:
                message = stream.take()
                if message is None:
                    break
                # All complete messages at once: each callback of the loop costs more than a
                # message.
                pipeline.answer(message).wake()
                pipeline.answered = None
                message = None  # It may be large, and an error keeps this frame.
        except DmEnvRpcClientError as error:
            self._ended(error)
            return
        except BaseException as error:
            # An answer may have been read and dropped, whichever request it was for.
            self._poison(error)
            raise
        if self._line:
            self._admit_next()
        events = stream.events()
        self._watch(events)
        if has_more:
            # Part of a large message was received; other callbacks run before the next part.
            self._soon = asyncio.get_running_loop().call_soon(self._on_ready)
        elif not events:
            self._soon = self._later(_AGAIN_SECONDS, self._on_ready)

    def _watch(self, events: int) -> None:
        """Make the event loop watch the descriptor for the given events and no others."""
        changed = events ^ self._events
        loop = self._loop
        if not changed or loop is None or loop.is_closed():
            return
        if not self._events:
            self._descriptor = self._stream.fileno()
        self._events = events
        if changed & select.POLLIN:
            if events & select.POLLIN:
                loop.add_reader(self._descriptor, self._on_ready)
            else:
                loop.remove_reader(self._descriptor)
        if changed & select.POLLOUT:
            if events & select.POLLOUT:
                loop.add_writer(self._descriptor, self._on_ready)
            else:
                loop.remove_writer(self._descriptor)

    def _later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, callback)

    def _look(self) -> None:
        """Check whether the server is silent while an answer is awaited."""
        self._looking = None
        if self._is_aborted or not self._pipeline.fifo:
            return
        self._looking = self._later(_LOOK_SECONDS, self._look)
        if self._ending is None:
            with contextlib.suppress(ConnectionLostError):  # It is taken, too.
                self._stream.look()
            self._on_ready()

    def _ended(self, error: DmEnvRpcClientError) -> None:
        """Continue the stream on another connection after an error, or poison the pipeline."""
        self._watch(0)
        again = self._stream.opening_again()
        if self._over is not None:
            # The traceback refers to the stream, which must be freed without gc.
            error.__traceback__ = None
            _set(self._over)
        elif again is not None or server_ends.watched(self.address, error):
            self._ending = asyncio.ensure_future(self._go_on_or_explain(again, error))
        else:
            self._poison(error)

    async def _go_on_or_explain(
        self, again: Callable[[], Awaitable[None]] | None, error: DmEnvRpcClientError
    ) -> None:
        failure: DmEnvRpcClientError | None = error
        try:
            if again is not None:
                try:
                    await again()
                    failure = None
                except DmEnvRpcClientError as caught:
                    failure = caught
            server = None if failure is None else server_ends.watched(self.address, failure)
            if server is not None:
                self._pipeline.server_end = await in_thread(server.end)
        finally:
            self._ending = None
            if failure is not None:
                self._poison(failure)
        self._on_ready()

    async def _wait_for_room(self, pending: Pending) -> None:
        """Wait in line until `pending` can be pushed or is done."""
        is_woken = False
        while pending.outcome is None and (
            (self._line and not is_woken) or not self._pipeline.has_room(pending.size)
        ):
            self._pipeline.check_usable()
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            (self._line.appendleft if is_woken else self._line.append)(turn)
            pending.waiters.append(functools.partial(_set, turn))
            try:
                await turn
            except BaseException:
                self._admit_next()
                raise
            is_woken = True

    def _admit_next(self) -> None:
        """Wake the first coroutine in line, which wakes the next once its request is pushed."""
        while self._line and self._pipeline.has_room(0):
            # First come, first served: actions keep the order in which they were sent.
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _expire(self, pending: Pending) -> None:
        late = self._pipeline.late(pending)
        pending.finish(None, late)
        # Unsent, it can simply fail: no answer will come for it.
        if pending.is_sent:
            self._poison(late)
        pending.wake()

    def _poison(self, cause: BaseException, keep_stream: bool = False) -> None:
        was_usable = self.poisoned_by is None
        for pending in self._pipeline.poison(cause):
            pending.wake()
        while self._line:
            _set(self._line.popleft())
        if not keep_stream:
            self._abort()
        if was_usable and not self._is_closed:
            name = type(cause).__name__
            _log.info("the connection to %s is unusable: %s: %s", self.address, name, cause)

    def _abort(self) -> None:
        self._is_aborted = True
        if self._loop is not None and not self._loop.is_closed():
            self._watch(0)
            for waiting in (self._soon, self._looking, self._ending):
                if waiting is not None:
                    waiting.cancel()
        self._stream.abort()


def _set(future: asyncio.Future[None]) -> None:
    # In a closed event loop no coroutine waits.
    if not future.done() and not future.get_loop().is_closed():
        future.set_result(None)
