"""What forked children do to connections of their parent: everything that there is to do.

Each public name of a connection and of a future has its use here, so that a new one without a use
fails the tests. What would touch the socket is refused; the rest tells that the connection is lost.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import gc
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dm_env_rpc_client import AsyncConnection, Connection, ConnectionLostError, connect
from tests.support.both_transports import forced
from tests.support.scripted import extension

_seconds: list[float] = []
"""How long each refusal in this process took."""


def _check(error: BaseException | None, began: float) -> str:
    _seconds.append(time.perf_counter() - began)
    assert isinstance(error, ConnectionLostError), repr(error)
    assert "forked" in str(error), error
    return str(error)


def refused(act: Callable[[], Any]) -> str:
    """The text of the error with which `act` is refused."""
    began = time.perf_counter()
    try:
        act()
    except ConnectionLostError as error:
        return _check(error, began)
    raise AssertionError("it was not refused")


async def refused_async(attempt: Awaitable[Any]) -> None:
    began = time.perf_counter()
    try:
        await attempt
    except ConnectionLostError as error:
        _check(error, began)
        return
    raise AssertionError("it was not refused")


def _never(*arguments: object) -> None:
    raise AssertionError("the parent's connection was ended in the child")


def _look_at(connection: Connection | AsyncConnection) -> dict[str, Callable[[], Any]]:
    """The attributes."""

    def check(name: str, expected: object) -> Callable[[], None]:
        def look() -> None:
            assert getattr(connection, name) == expected, name

        return look

    return {
        "address": lambda: connection.address,
        "in_flight": check("in_flight", 0),
        "is_usable": check("is_usable", False),
        "lifecycle": lambda: connection.lifecycle,
        "limits": lambda: connection.limits,
        "poisoned_by": lambda: _check(connection.poisoned_by, time.perf_counter()),
        "if_not_closed": lambda: connection.if_not_closed(_never),
        "interrupted": lambda: connection.interrupted(KeyboardInterrupt()),
        "release": lambda: connection.release(KeyboardInterrupt()),
        "__repr__": lambda: repr(connection),
    }


def use_everything(connection: Connection, pending: Sequence[Any], futures: Sequence[Any]) -> str:
    """Every method of a connection and of the futures of its requests."""

    def check(act: Callable[[], Any], expected: object) -> Callable[[], None]:
        def use() -> None:
            found = act()
            assert found == expected, found

        return use

    def send() -> None:
        refused(lambda: connection.send(extension(1000)))
        refused(lambda: connection.send(extension(1000), timeout=0.001))

    def wait() -> None:
        for one in pending:
            refused(functools.partial(connection.wait, one))

    def poll() -> None:
        for one in pending:
            assert connection.poll(one)

    def reopen() -> None:
        if forced() == "http2":  # grpcio itself does not work in forked children.
            with connection.reopen() as again:
                assert again.send(extension(1008)) == extension(1008)

    uses = {
        **_look_at(connection),
        "send": send,
        "submit": lambda: refused(lambda: connection.submit(extension(1001))),
        "start": lambda: refused(lambda: connection.start(extension(1002))),
        "start_all": lambda: refused(lambda: connection.start_all([extension(1003)])),
        "poll": poll,
        "wait": wait,
        "fileno": check(connection.fileno, -1),
        "has_unread": check(connection.has_unread, True),
        "shared_socket": check(connection.shared_socket, None),
        "reopen": reopen,
        "close": connection.close,
    }
    _has_all(uses, connection)
    for use in uses.values():
        use()
    for future in futures:
        use_future(future)
    if futures:
        done, _ = concurrent.futures.wait(futures, timeout=60)
        assert done == set(futures)
    if forced() == "http2":
        with connect(connection.address, timeout=10) as fresh:
            assert fresh.send(extension(1007)) == extension(1007)
    return "refused"


def use_future(future: concurrent.futures.Future[Any]) -> None:
    called: list[object] = []
    refused(lambda: future.result(5))
    _check(future.exception(5), time.perf_counter())
    assert future.done()
    assert not future.running()
    assert not future.cancel()
    assert not future.cancelled()
    future.add_done_callback(called.append)
    assert called == [future]


async def use_everything_async(
    connection: AsyncConnection, pending: Sequence[Any], *, reopens: bool = True
) -> str:
    """Every method of an AsyncConnection; `reopens` only in a loop of this process."""

    async def send() -> None:
        await refused_async(connection.send(extension(1000)))
        await refused_async(connection.send(extension(1000), timeout=0.001))

    async def wait() -> None:
        for one in pending:
            await refused_async(connection.wait(one))

    async def reopen() -> None:
        if reopens and forced() == "http2":
            async with await connection.reopen() as again:
                assert await again.send(extension(1008)) == extension(1008)

    looks = _look_at(connection)
    uses: dict[str, Callable[[], Awaitable[Any]]] = {
        "send": send,
        "send_with": lambda: refused_async(connection.send_with(extension(1001), None)),
        "start": lambda: refused_async(connection.start(extension(1001))),
        "wait": wait,
        "reopen": reopen,
        "close": connection.close,
    }
    _has_all({**looks, **uses}, connection)
    for look in looks.values():
        look()
    for use in uses.values():
        await use()
    return "refused"


def _has_all(uses: dict[str, Any], connection: object) -> None:
    names = {name for name in dir(connection) if not name.startswith("_")}
    assert names <= set(uses), f"without a use: {names - set(uses)}"


def _told(act: Callable[..., Any], *arguments: Any) -> str:
    """Does something, and tells how many refusals there were and how long the slowest took."""
    _seconds.clear()
    act(*arguments)
    return json.dumps([len(_seconds), max(_seconds, default=0.0)])


def _exit() -> None:
    """What the interpreter does at its exit."""
    atexit._run_exitfuncs()
    gc.collect()


def _forget(holder: list[Any], pending: list[Any], futures: list[Any]) -> None:
    """Leaves a `with` block by an error, and then holds nothing of the connection any more."""
    if isinstance(holder[0], Connection):
        try:
            with holder[0]:
                raise KeyError
        except KeyError:
            pass
    for held in (holder, pending, futures):
        held.clear()
    gc.collect()


ACTS: dict[str, Callable[[list[Connection], list[Any], list[Any]], str]] = {
    "uses everything": lambda holder, pending, futures: _told(
        use_everything, holder[0], pending, futures
    ),
    "misses a deadline": lambda holder, pending, futures: _told(
        refused, lambda: holder[0].send(extension(1000), timeout=0.01)
    ),
    "collects garbage": lambda *held: _told(_forget, *held),
    "exits": lambda *held: _told(_exit),
}
"""What a child does; takes a list with the connection, and those of its requests."""


def _in_a_loop(main: Callable[[], Awaitable[Any]]) -> None:
    """In a loop of the child's own."""
    asyncio.new_event_loop().run_until_complete(main())


ASYNC_ACTS: dict[str, Callable[[list[AsyncConnection], list[Any], list[Any]], str]] = {
    "uses everything": lambda holder, pending, _: _told(
        _in_a_loop, lambda: use_everything_async(holder[0], pending)
    ),
    "misses a deadline": lambda holder, *_: _told(
        _in_a_loop, lambda: refused_async(holder[0].send(extension(1000), timeout=0.01))
    ),
    "collects garbage": lambda *held: _told(_forget, *held),
    "exits": lambda *held: _told(_exit),
}
