"""The pipeline for coroutines: requests and answers on one stream of one event loop.

The loop calls when there is something to read, also while no request is pending, so that an
answer that nobody asked for is noticed at once. What it calls refers to the pipeline and not to the
connection, so a connection that nobody refers to can be freed.

The stream is that of threads, driven by the loop. The pipeline for threads would take more: it
lets the threads that wait take turns in reading, and a coroutine has no thread of its own.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import os
from collections.abc import Iterable
from typing import Any

from dm_env_rpc_client.client import server_ends
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DmEnvRpcClientError,
)
from dm_env_rpc_client.protocol.observing import pipeline_to
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.system import forking
from dm_env_rpc_client.system.threads import in_thread
from dm_env_rpc_client.transports.streams import AsyncStream

__all__ = ["AsyncPipeline"]


_log = logging.getLogger(__name__)


class AsyncPipeline:
    """Sends requests on a stream and waits for their answers.

    Args:
      stream: an open stream, which the pipeline closes.
    """

    def __init__(self, stream: AsyncStream):
        self.address = stream.address
        self._stream = stream
        self._pipeline = pipeline_to(stream.address)
        self._pid = os.getpid()
        # Requests that wait until the number and the size of pending ones permit them.
        self._line: collections.deque[asyncio.Future[None]] = collections.deque()
        # Finds out how the server has ended.
        self._asking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        forking.register(self)

    @property
    def poisoned_by(self) -> BaseException | None:
        """The first error that made the stream unusable; None while it is usable."""
        return self._pipeline.poisoned_by

    def __len__(self) -> int:
        """The number of pending requests."""
        return len(self._pipeline)

    def begin(self) -> None:
        """Begins to read; called in the event loop."""
        if self._loop is None and not self._is_closed:
            self._loop = asyncio.get_running_loop()
            self._stream.begin(self._read, lambda: bool(self._pipeline.fifo))

    async def start(self, pending: Pending, timeout: float | None) -> None:
        """Sends a request; waits only while pending requests are at their limit.

        Args:
          pending: the request.
          timeout: seconds until its answer is due; None for no limit.
        """
        self._check_process()
        self.begin()
        pipeline = self._pipeline
        if not pipeline.fifo and pipeline.poisoned_by is None:
            # The loop may not have run since an answer came that nobody asked for.
            self._stream.take_arrived()
        pipeline.check_usable()
        timer = None
        if timeout is not None:
            timer = asyncio.get_running_loop().call_later(timeout, self._expire, pending)
            pending.waiters.append(timer.cancel)
        try:
            if self._line or not pipeline.has_room(pending.size):
                await self._wait_for_room(pending)
            if pending.outcome is None:
                (message,) = pipeline.push([pending])  # There is room.
                self._stream.write(message)
                self._admit_next()
        except BaseException:
            if timer is not None:
                timer.cancel()
            raise

    async def wait(self, pending: Pending) -> Any:
        """Returns or raises the outcome of a request that was started."""
        self._check_process()
        if pending.outcome is None:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            pending.waiters.append(functools.partial(_set, answered))
            try:
                await answered
            except BaseException as error:
                self.interrupted(error, (pending,))
                raise
        return pending.result()

    def interrupted(self, error: BaseException, pendings: Iterable[Pending] | None = None) -> None:
        """Poisons the pipeline if an error has interrupted the wait for a request.

        Args:
          error: the error.
          pendings: the requests that were waited for, see `Pipeline.is_interrupted`; None if it is
            known that an answer is lost.
        """
        self._check_process()
        if self._pipeline.is_interrupted(error, pendings):
            self._poison(error)

    async def close(self, timeout: float) -> None:
        """Ends the stream, gracefully if no request is pending. Never raises."""
        self._check_process()
        if self._is_closed:
            return
        self._is_closed = True
        # With pending requests the stream is cancelled: their answers are not used any more.
        was_usable = self.poisoned_by is None
        is_idle = was_usable and not len(self._pipeline)
        closed = ConnectionClosedError(f"the connection to {self.address} was closed")
        self._poison(closed, is_idle)
        if was_usable:
            _log.debug("%s", closed)
        if self._asking is not None:
            self._asking.cancel()
        await self._stream.close(timeout if is_idle else 0.0)

    def forget(self) -> None:
        """Ends the stream of a connection that nobody refers to; any thread may call it."""
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
        """Whether the stream belongs to this process, and not to the one that forked it."""
        return os.getpid() == self._pid and not self._is_closed

    def end_at_exit(self) -> None:
        """Ends the stream when the event loop will run no more, as at the interpreter's exit."""
        if self._loop is not None and self._loop.is_running():
            self.forget()  # In a thread that still runs.
            return
        try:
            self._stream.abort()
        except RuntimeError:
            pass  # The loop is closed. What was said last has been sent by then.

    def after_fork_in_child(self) -> None:
        """The connection is the parent's: everything fails here, and nothing is seen there."""
        parent, self._pid = self._pid, os.getpid()
        self._is_closed = True
        self._stream.abandon()
        lost = ConnectionLostError(
            f"it belongs to process {parent}, which forked this one; open a connection of its own "
            "in each process"
        )
        self._poison(lost, keep_stream=True)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            self.after_fork_in_child()

    def _read(self) -> None:
        """Gives the answers that have arrived to their requests."""
        pipeline = self._pipeline
        try:
            while True:
                message = self._stream.read()
                if message is None:
                    break
                pending = pipeline.answer(message)
                pipeline.retire(pending)
                pending.wake()
                message = None  # It may be large, and an error keeps this frame.
        except DmEnvRpcClientError as error:
            self._end_by(error)
        except BaseException as error:
            # An answer may have been read and dropped, whichever request it was for.
            self._poison(error)
            raise
        self._admit_next()

    def _end_by(self, error: DmEnvRpcClientError) -> None:
        """Poisons the pipeline, when it is known how a server that was launched has ended."""
        server = server_ends.watched(self.address, error)
        if server is None:
            self._poison(error)
        elif self._asking is None:
            self._asking = asyncio.ensure_future(self._ask(server, error))

    async def _ask(self, server: server_ends.WatchedServer, error: DmEnvRpcClientError) -> None:
        try:
            self._pipeline.server_end = await in_thread(server.end)
        finally:
            self._poison(error)

    async def _wait_for_room(self, pending: Pending) -> None:
        """Returns when `pending` may be pushed or is done; first come, first served."""
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
        """Wakes the first request in line, which wakes the next one when it was pushed."""
        while self._line and self._pipeline.has_room(0):
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _expire(self, pending: Pending) -> None:
        late = self._pipeline.late(pending)
        pending.finish(None, late)
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
            self._stream.abort()
        if was_usable and not self._is_closed:
            name = type(cause).__name__
            _log.info("the connection to %s is unusable: %s: %s", self.address, name, cause)


def _set(future: asyncio.Future[None]) -> None:
    # Nobody waits in an event loop that is closed.
    if not future.done() and not future.get_loop().is_closed():
        future.set_result(None)
