"""What connecting waits for, and the two ways to wait: a thread that blocks, and an event loop.

Connecting is a generator that yields what it waits for. `run` and `run_async` wait, and send the
outcome into it. What ends a wait, such as an interrupt or a cancelled task, is thrown into the
generator, whose `except` and `finally` free what it has opened.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from dm_env_rpc_client.system.threads import in_thread
from dm_env_rpc_client.transports.http2.sockets import poll_for

Result = TypeVar("Result")


class Wait(Protocol):
    """Something to wait for."""

    def block(self) -> Any:
        """Waits in this thread; returns the outcome."""

    async def wait(self) -> Any:
        """Waits in the running event loop; returns the outcome."""


Sequence: TypeAlias = Generator[Wait, Any, Result]
"""What yields waits, is sent their outcomes, and returns a result."""


class Ready(NamedTuple):
    """The wait for a socket. Its outcome is whether the socket is ready."""

    socket: Any
    """It has a `fileno`."""

    events: int
    """`select.POLLIN`, `select.POLLOUT` or both."""

    seconds: float | None
    """How long to wait; None for any time."""

    def block(self) -> bool:
        is_ready = poll_for(self.socket, self.events)
        return is_ready(_FOR_EVER if self.seconds is None else self.seconds)

    async def wait(self) -> bool:
        loop = asyncio.get_running_loop()
        process, descriptor = os.getpid(), self.socket.fileno()
        ready: asyncio.Future[bool] = loop.create_future()
        timer = None
        if self.seconds is not None:
            timer = loop.call_later(self.seconds, _settle, ready, False)
        try:
            if self.events & select.POLLIN:
                loop.add_reader(descriptor, _settle, ready, True)
            if self.events & select.POLLOUT:
                loop.add_writer(descriptor, _settle, ready, True)
            return await ready
        finally:
            # A forked child shares the selector with its parent, which waits on.
            if os.getpid() == process:
                loop.remove_reader(descriptor)
                loop.remove_writer(descriptor)
            if timer is not None:
                timer.cancel()


class Pause(NamedTuple):
    """The wait for so many seconds."""

    seconds: float

    def block(self) -> None:
        time.sleep(self.seconds)

    async def wait(self) -> None:
        await asyncio.sleep(self.seconds)


class Call(NamedTuple):
    """The wait for a function that has no timeout, in a thread of its own.

    Its outcome is the result of the function, or TimeoutError. If the wait ends before the function
    does, its daemon thread goes on until then.
    """

    function: Callable[[], Any]

    seconds: float | None
    """How long to wait; None for any time."""

    def block(self) -> Any:
        if self.seconds is None:
            return self.function()
        outcomes: list[Any] = []
        thread = threading.Thread(target=_keep_outcome, args=(self.function, outcomes), daemon=True)
        thread.start()
        thread.join(self.seconds)
        if not outcomes:
            raise TimeoutError
        if isinstance(outcomes[0], BaseException):
            raise outcomes[0]
        return outcomes[0]

    async def wait(self) -> Any:
        try:
            return await asyncio.wait_for(in_thread(self.function), self.seconds)
        except asyncio.TimeoutError:
            raise TimeoutError from None


def run(sequence: Sequence[Result]) -> Result:
    """Runs a sequence in this thread, which waits."""
    outcome: Any = None
    error: BaseException | None = None
    try:
        while True:
            wait = sequence.send(outcome) if error is None else sequence.throw(error)
            outcome = error = None
            try:
                outcome = wait.block()
            except BaseException as caught:
                error = caught
            del wait
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        sequence.close()
        error = None  # Its traceback refers to this frame.


async def run_async(sequence: Sequence[Result]) -> Result:
    """Runs a sequence in the running event loop, which goes on meanwhile."""
    outcome: Any = None
    error: BaseException | None = None
    try:
        while True:
            wait = sequence.send(outcome) if error is None else sequence.throw(error)
            outcome = error = None
            try:
                outcome = await wait.wait()
            except BaseException as caught:
                error = caught
            del wait
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        sequence.close()
        error = None  # Its traceback refers to this frame.


_FOR_EVER = 1e6


def _settle(future: asyncio.Future[bool], outcome: bool) -> None:
    if not future.done():
        future.set_result(outcome)


def _keep_outcome(function: Callable[[], Any], outcomes: list[Any]) -> None:
    try:
        outcomes.append(function())
    except OSError as error:
        outcomes.append(error)
