"""Row 43: callbacks of futures that wait for other requests, submit, close, raise and exit."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import (
    Connection,
    ConnectionClosedError,
    DeadlineExceededError,
    connect,
)
from dm_env_rpc_client.testing import Request, Response, ScriptedServer, echo
from tests.reliability.scorecard import counts
from tests.support.scripted import extension, number_of, settles
from tests.support.stopwatch import time_limit

Future = concurrent.futures.Future[Any]
pytestmark = pytest.mark.row(43)

SECONDS = 60.0


@pytest.fixture
def connection(echo_server: Any) -> Iterator[Connection]:
    with connect(echo_server.address) as opened:
        yield opened


class _Calls:
    """What callbacks were called with, and the event of the last."""

    def __init__(self, count: int):
        self._left = count
        self._lock = threading.Lock()
        self.all = threading.Event()
        self.numbers: list[int] = []

    def add(self, number: int) -> None:
        with self._lock:
            self.numbers.append(number)
            self._left -= 1
            if not self._left:
                self.all.set()


def goes_on(connection: Connection) -> None:
    assert connection.is_usable
    assert number_of(connection.send(extension(99))) == 99
    assert number_of(connection.submit(extension(98)).result(SECONDS)) == 98


@counts(20, 200)
def test_row_43_callbacks_that_wait_for_the_next_request(
    connection: Connection, count: int
) -> None:
    """Row 43: each callback waits for the future after it, and for a request of its own."""
    calls = _Calls(count)
    futures = [connection.submit(extension(number)) for number in range(count + 1)]

    def wait_for(later: Future) -> Callable[[Future], None]:
        def callback(future: Future) -> None:
            own = number_of(connection.send(extension(1000)))
            calls.add(number_of(later.result(SECONDS)) - number_of(future.result()) + own)

        return callback

    for future, later in itertools.pairwise(futures):
        future.add_done_callback(wait_for(later))
    assert calls.all.wait(SECONDS)
    assert calls.numbers == [1001] * count
    goes_on(connection)


@pytest.mark.parametrize("error", [ValueError("of a callback"), SystemExit(3), KeyboardInterrupt()])
@counts(20, 200)
def test_row_43_callbacks_that_raise(
    connection: Connection,
    error: BaseException,
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Row 43: what a callback raises is logged; other callbacks and requests go on."""
    calls = _Calls(count)

    def raising(future: Future) -> None:
        raise error.with_traceback(None)  # Otherwise it grows with each time.

    futures = [connection.submit(extension(number)) for number in range(count)]
    for future in futures:
        future.add_done_callback(raising)
        future.add_done_callback(lambda done: calls.add(number_of(done.result())))
    assert [number_of(future.result(SECONDS)) for future in futures] == list(range(count))
    assert calls.all.wait(SECONDS)
    assert calls.numbers == list(range(count))
    goes_on(connection)
    failures = [record for record in caplog.records if "of a future failed" in record.message]
    assert len(failures) == count
    assert {record.levelno for record in failures} == {logging.ERROR}


@counts(20, 200)
def test_row_43_callbacks_that_close(echo_server: Any, count: int) -> None:
    """Row 43: `close` in a callback ends the rest with ConnectionClosedError, and returns."""
    for _ in range(max(1, count // 10)):
        connection = connect(echo_server.address)
        calls = _Calls(20)
        futures = [connection.submit(extension(number)) for number in range(20)]

        def callback(future: Future, connection: Connection = connection) -> None:
            connection.close()

        futures[0].add_done_callback(callback)

        def add(future: Future, calls: _Calls = calls) -> None:
            calls.add(future.exception() is None)

        for future in futures:
            future.add_done_callback(add)
        assert calls.all.wait(SECONDS)
        outcomes = [future.exception(SECONDS) for future in futures]
        assert outcomes[0] is None
        assert all(error is None or isinstance(error, ConnectionClosedError) for error in outcomes)
        assert not connection.is_usable


@pytest.mark.usefixtures("quick_switches")
def test_row_43_everything_at_once(connection: Connection) -> None:
    """Row 43: callbacks beside threads that send, at a short switch interval."""
    calls = _Calls(200)

    def send(first: int) -> None:
        for number in range(first, first + 100):
            assert number_of(connection.send(extension(number))) == number

    def callback(future: Future) -> None:
        number = number_of(future.result())
        calls.add(number_of(connection.send(extension(number + 1))) - 1)
        if number % 3 == 0:
            raise SystemExit

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        sending = pool.map(send, (1000, 2000))
        for number in range(200):
            # Of a future that is done, it is called here and raises here, as in the base class.
            with contextlib.suppress(SystemExit):
                connection.submit(extension(number)).add_done_callback(callback)
        assert list(sending) == [None] * 2
    assert calls.all.wait(SECONDS)
    # One that is added when its future is done is called by this thread, beside earlier ones.
    assert sorted(calls.numbers) == list(range(200))
    goes_on(connection)


def futures_threads(connection: Connection) -> list[str]:
    """The threads of its futures; those of earlier tests may still be about to end."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.endswith(f"futures of {connection.address}")]


def test_a_future_whose_result_is_asked_for_needs_no_thread(connection: Connection) -> None:
    futures = [connection.submit(extension(number)) for number in range(50)]
    assert repr(futures[0]) == "<RequestFuture for extension: running>"
    assert settles(futures[0].done)
    assert repr(futures[0]) == "<RequestFuture for extension: finished>"
    assert not futures[0].running()
    assert [number_of(future.result(SECONDS)) for future in futures] == list(range(50))
    assert futures[7].exception() is None
    assert futures_threads(connection) == []


def test_the_thread_of_the_futures_ends_when_nobody_needs_it(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way of waiting that does not read has the thread, and the thread ends."""
    monkeypatch.setattr("dm_env_rpc_client.client.futures._LINGER_SECONDS", 0.05)

    def has_ended() -> bool:
        return settles(lambda: futures_threads(connection) == [])

    done, _ = concurrent.futures.wait([connection.submit(extension(1))], SECONDS)
    assert len(done) == 1
    assert has_ended()
    futures = [connection.submit(extension(number)) for number in range(3)]
    found = [
        number_of(future.result())
        for future in concurrent.futures.as_completed(futures, timeout=SECONDS)
    ]
    assert sorted(found) == [0, 1, 2]
    assert has_ended()

    async def ask() -> int:
        return number_of(await asyncio.wrap_future(connection.submit(extension(5))))

    assert asyncio.run(ask()) == 5
    assert has_ended()
    called = threading.Event()
    connection.submit(extension(1)).add_done_callback(lambda _: called.set())
    assert called.wait(SECONDS)
    assert has_ended()


def test_an_interrupted_wait_for_a_future_that_another_thread_reads_is_harmless(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the thread that reads may have an answer in its hands."""
    awaited = Connection._await

    def interrupted(self: Connection, *arguments: Any) -> None:
        monkeypatch.setattr(Connection, "_await", awaited)
        raise KeyboardInterrupt

    future = connection.submit(extension(1))
    monkeypatch.setattr(Connection, "_await", interrupted)
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert number_of(future.result(SECONDS)) == 1
    goes_on(connection)


def one_by_one(turns: threading.Semaphore) -> Callable[..., Iterator[Response]]:
    """Answers the next request with the same each time that it may."""

    def script(requests: Iterator[Request], context: Any) -> Iterator[Response]:
        for answer in echo(requests, context):
            assert turns.acquire(timeout=SECONDS)
            yield answer

    return script


def test_a_future_is_completed_before_those_of_later_requests() -> None:
    """In whatever order something begins to wait for them."""
    turns = threading.Semaphore(0)
    with ScriptedServer(one_by_one(turns)) as server, connect(server.address) as connection:
        futures = [connection.submit(extension(number)) for number in range(3)]
        called: queue.SimpleQueue[int] = queue.SimpleQueue()
        for future in reversed(futures):
            future.add_done_callback(lambda done: called.put(number_of(done.result())))
        for number in range(3):
            turns.release()
            assert called.get(timeout=SECONDS) == number


def test_what_waits_for_a_future_is_told_of_its_deadline() -> None:
    """Also behind a request that may take longer, and for which nobody waits."""
    turns = threading.Semaphore(0)
    with (
        ScriptedServer(one_by_one(turns)) as server,
        connect(server.address, request_timeout=0.3) as connection,
    ):
        connection.start(extension(1), timeout=SECONDS)
        future = connection.submit(extension(2))
        with time_limit(SECONDS / 4):
            assert concurrent.futures.wait([future], SECONDS).done == {future}
        assert isinstance(future.exception(), DeadlineExceededError)
        assert repr(future).endswith(": finished, raised DeadlineExceededError>")
        assert not connection.is_usable
        turns.release(2)  # So that the server ends.


def test_a_callback_of_a_future_that_is_done_is_called_at_once(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Future] = []

    def raising(future: Future) -> None:
        called.append(future)
        raise ValueError("of a callback")

    future = connection.submit(extension(1))
    future.result(SECONDS)
    for _ in range(2):
        future.add_done_callback(raising)
    assert called == [future] * 2
    assert caplog.text.count("ValueError: of a callback") == 2
    assert futures_threads(connection) == []
