"""Exchanges: sequences of requests that are written once for both threads and asyncio.

An exchange is a generator that yields each call that it has to wait for. A driver makes the call:
the driver `drive` blocks until the result arrives, and `adrive` awaits the result. The driver then
sends the result to the generator, or throws the error that ended the wait into the generator.
Steps do not use exchanges, because they are so frequent that the overhead would be too high.

The kind of error determines what an exchange is allowed to do next. After an `Exception`, an
exchange may yield clean-up requests, each with a timeout, but not over a connection that the error
has made unusable. Any other error (KeyboardInterrupt, CancelledError or GeneratorExit) is an
interrupt. Python raises GeneratorExit in the generator if the interrupt occurs between two
waits. After an interrupt, the exchange waits for nothing more: it makes the connection unusable,
releases everything with plain, non-blocking calls, and yields nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.system.waiting import in_thread

if TYPE_CHECKING:
    from dm_env_rpc_client.client.async_connection import AsyncConnection
    from dm_env_rpc_client.client.connection import Connection


AnyConnection: TypeAlias = "Connection | AsyncConnection"
"""The connection of an exchange: a Connection for `drive`, an AsyncConnection for `adrive`."""


class Call:
    """A function call. `adrive` awaits the result if it is awaitable.

    The function can therefore be a method of both kinds of connections, or a user's function.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.function = function
        self.arguments = arguments

    def wait(self) -> Any:
        """Make the call, and return its result."""
        return self.function(*self.arguments)

    async def awaited(self) -> Any:
        """Make the call in an event loop."""
        result = self.function(*self.arguments)
        return await result if inspect.isawaitable(result) else result


class Blocking(Call):
    """A call to a blocking function. `adrive` makes the call in a thread."""

    async def awaited(self) -> Any:
        """Make the call in a thread."""
        return await in_thread(self.function, *self.arguments)


class Sleep(NamedTuple):
    """A pause of `seconds` in an exchange."""

    seconds: float

    def wait(self) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    async def awaited(self) -> None:
        """Sleep in an event loop."""
        await asyncio.sleep(self.seconds)


Result = TypeVar("Result")

Exchange: TypeAlias = Generator[Call | Sleep, Any, Result]
"""A sequence of requests that ends with a result."""


def drive(exchange: Exchange[Result]) -> Result:
    """Run an exchange in this thread, and return its result or raise its error."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            # Errors are thrown into the exchange, so that its `try` blocks work as in plain code.
            call = exchange.send(result) if error is None else exchange.throw(error)
            result, error = _outcome(call)
    except StopIteration as end:
        returned: Result = end.value
        return returned
    finally:
        error = None  # Its traceback refers to this frame.
        exchange.close()  # After an interrupt of this function itself.


async def adrive(exchange: Exchange[Result]) -> Result:
    """Run an exchange in the event loop, and return its result or raise its error."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            call = exchange.send(result) if error is None else exchange.throw(error)
            result, error = await _async_outcome(call)
    except StopIteration as end:
        returned: Result = end.value
        return returned
    finally:
        error = None
        exchange.close()


def _outcome(call: Call | Sleep) -> tuple[Any, BaseException | None]:
    try:
        return call.wait(), None
    # KeyboardInterrupt and CancelledError, too: the exchange must release what it holds.
    except BaseException as error:
        return None, error


async def _async_outcome(call: Call | Sleep) -> tuple[Any, BaseException | None]:
    try:
        return await call.awaited(), None
    except BaseException as error:
        return None, error


def request(
    connection: AnyConnection, message: envelopes.Request, timeout: float | None = None
) -> Exchange[Any]:
    """Send a request and wait for its answer.

    The exchange does not call `send`, which a program may have replaced.

    Args:
      connection: the connection.
      message: the request.
      timeout: the time limit for the answer in seconds; None for the connection's
        `request_timeout`.

    Returns:
      The answer. Errors are those of `Connection.send`.
    """
    pending = yield Call(connection.start, message, None, timeout)
    return (yield Call(connection.wait, pending))


def answer(connection: AnyConnection, pending: Any) -> Exchange[Any]:
    """Wait for the answer to a pending request."""
    return (yield Call(connection.wait, pending))


def closed_if_failing(connection: AnyConnection, exchange: Exchange[Result]) -> Exchange[Result]:
    """Run an exchange. Close the connection after a failure, or release it after an interrupt."""
    try:
        return (yield from exchange)
    except Exception:
        yield Call(connection.close)
        raise
    except BaseException as interrupt:
        # A plain call: after an interrupt, nothing may be awaited any more.
        connection.release(interrupt)
        raise


def closing(connection: AnyConnection, exchange: Exchange[Result]) -> Exchange[Result]:
    """Run an exchange and then close the connection, or release it after an interrupt."""
    result = yield from closed_if_failing(connection, exchange)
    yield Call(connection.close)
    return result
