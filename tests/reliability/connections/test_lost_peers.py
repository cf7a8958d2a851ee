"""Rows 11, 12 and 15: a peer that answers wrongly, ends the stream, is silent, or is left.

Whatever happens, what waits is told at once, and nothing is answered any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest

from dm_env_rpc_client import (
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    ProtocolError,
    connect,
    connect_async,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.testing import Request, Response, ScriptedServer, answering
from tests.support.both_transports import EVERY
from tests.support.scripted import extension
from tests.support.stopwatch import time_limit

TRANSPORTS = EVERY

SECONDS = 20.0


class Client:
    """A connection whose requests are begun, and then waited for.

    Attributes:
      begin: begins a request; returns what waits for its answer.
      close: ends the connection.
    """

    def __init__(self, connection: Any, begin: Callable[[int], Callable[[], Any]], run: Any):
        self.connection = connection
        self.begin = begin
        self.close = lambda: run(connection.close())

    def ask(self) -> None:
        """Begins a request, and waits for its answer."""
        self.begin(9)()


def of_threads(begin: Callable[[Connection, int], Callable[[], Any]]) -> Any:
    """What opens a client that begins requests in a way."""

    @contextlib.contextmanager
    def opened(address: str, timeout: float) -> Iterator[Client]:
        with connect(address, request_timeout=timeout) as connection:
            yield Client(connection, functools.partial(begin, connection), lambda none: none)

    return opened


@contextlib.contextmanager
def coroutines(address: str, timeout: float) -> Iterator[Client]:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        run = loop.run_until_complete
        connection = run(connect_async(address, request_timeout=timeout))

        def begin(number: int) -> Callable[[], Any]:
            task = loop.create_task(connection.send(extension(number)))
            run(asyncio.sleep(0))  # It has begun.
            return lambda: run(task)

        yield Client(connection, begin, run)
        run(connection.close())


CLIENTS = {
    "sent": of_threads(lambda own, number: lambda: own.send(extension(number))),
    "started": of_threads(
        lambda own, number: functools.partial(own.wait, own.start(extension(number)))
    ),
    "futures": of_threads(
        lambda own, number: functools.partial(own.submit(extension(number)).result, SECONDS)
    ),
    "coroutines": coroutines,
}
"""Ways to wait for answers; the first begins and waits in one call."""


class Event(NamedTuple):
    """What happens to three requests in flight.

    Attributes:
      script: of the server.
      error: of the oldest of them, which is the cause of all later errors.
      said: is in its text.
      code: the status, of a connection that is lost.
      timeout: of the requests, in seconds.
    """

    script: Callable[..., Any]
    error: type[Exception] | tuple[type[Exception], ...]
    said: str
    code: str | None = None
    timeout: float = SECONDS


def ending(code: str | None) -> Callable[..., Iterator[Response]]:
    """Ends the stream, with a status if there is one."""

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        next(requests)
        if code is not None:
            context.abort(grpc.StatusCode[code], "the very reason")
        yield from ()

    return script


def silent(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
    """Answers nothing, and does not end the stream when the client does."""
    over = threading.Event()
    context.add_callback(over.set)
    assert over.wait(SECONDS)
    yield from ()


LOST = ("UNAVAILABLE", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED", "CANCELLED")
WRONG = answering(dm_env_rpc_pb2.LeaveWorldResponse())

EVENTS = {
    "another answer": Event(WRONG, ProtocolError, "contains leave_world; expected extension"),
    "an empty answer": Event(answering(Response()), ProtocolError, "contains no payload"),
    "no answer": Event(answering(b"\xff\xff\xff"), ProtocolError, "not an EnvironmentResponse"),
    "an end": Event(ending(None), ConnectionLostError, "ended the stream", "OK"),
    **{code: Event(ending(code), ConnectionLostError, "the very reason", code) for code in LOST},
    "UNIMPLEMENTED": Event(
        ending("UNIMPLEMENTED"), (ConnectionLostError, ProtocolError), "the very reason"
    ),
    "silence": Event(silent, DeadlineExceededError, "extension request", timeout=0.5),
}


@pytest.mark.row(11, 12, 15)
@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("opened", CLIENTS.values(), ids=CLIENTS)
def test_what_happens_to_one_request_is_told_to_all(opened: Any, name: str) -> None:
    event = EVENTS[name]
    with ScriptedServer(event.script) as server, opened(server.address, event.timeout) as client:
        first, *others = [client.begin(number) for number in range(3)]
        with time_limit(event.timeout + 2.0), pytest.raises(event.error, match=event.said) as told:
            first()
        assert event.code is None or getattr(told.value, "code", None) == event.code
        assert not client.connection.is_usable
        cause = client.connection.poisoned_by
        for wait in (*others, client.ask):
            with time_limit(2.0), pytest.raises(ConnectionLostError) as later:
                wait()
            assert later.value.__cause__ is cause
        with time_limit(2.0):
            client.close()
            client.close()


@pytest.mark.row(15)
@pytest.mark.parametrize("opened", CLIENTS.values(), ids=CLIENTS)
def test_close_fails_what_is_in_flight_though_the_server_never_ends_the_stream(
    opened: Any,
) -> None:
    with ScriptedServer(silent) as server, opened(server.address, None) as client:
        assert f"{server.address}" in repr(client.connection)
        waits = [client.begin(number) for number in range(3)]
        with time_limit(2.0):
            client.close()
            client.close()
        assert "unusable" in repr(client.connection)
        for wait in (*waits, client.ask):
            with pytest.raises(ConnectionClosedError, match="was closed"):
                wait()
