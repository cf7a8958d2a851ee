"""What forked children do to connections of their parent: everything that there is to do.

Each public name of a connection and of a future has its use here, so that a new one without a use
fails the tests. What would touch the socket is refused; the rest tells that the connection is lost.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import gc
import inspect
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from dm_env_rpc_client import Connection, ConnectionLostError, connect
from tests.support.both_transports import forced
from tests.support.scripted import extension

_seconds: list[float] = []
"""How long each refusal in this process took."""


def _check(error: BaseException | None, began: float) -> None:
    _seconds.append(time.perf_counter() - began)
    assert isinstance(error, ConnectionLostError), repr(error)
    assert "forked" in str(error), error


async def refused(act: Callable[[], Any]) -> None:
    """Checks that a call, or what it returns to be awaited, is refused."""
    began = time.perf_counter()
    try:
        found = act()
        if inspect.isawaitable(found):
            await found
    except ConnectionLostError as error:
        _check(error, began)
        return
    raise AssertionError("it was not refused")


def _never(*arguments: object) -> None:
    raise AssertionError("the parent's connection was ended in the child")


REFUSED: dict[str, tuple[Any, ...]] = {
    "send": (extension(1000),),
    "send_with": (extension(1001), None),
    "submit": (extension(1001),),
    "start": (extension(1002),),
    "start_all": ([extension(1003)],),
}
"""Methods that would send, and their arguments."""

HARMLESS: dict[str, Callable[[Any], object]] = {
    "address": lambda connection: connection.address,
    "in_flight": lambda connection: connection.in_flight == 0,
    "is_usable": lambda connection: not connection.is_usable,
    "lifecycle": lambda connection: [connection.lifecycle],
    "limits": lambda connection: [connection.limits],
    "poisoned_by": lambda connection: isinstance(connection.poisoned_by, ConnectionLostError),
    "if_not_closed": lambda connection: connection.if_not_closed(_never) is None,
    "interrupted": lambda connection: connection.interrupted(KeyboardInterrupt()) is None,
    "release": lambda connection: connection.release(KeyboardInterrupt()) is None,
    "fileno": lambda connection: connection.fileno() == -1,
    "has_unread": lambda connection: connection.has_unread(),
    "shared_socket": lambda connection: connection.shared_socket() is None,
}
"""What tells that the connection is lost, or does nothing; true if it is so."""

OTHERS = {"poll", "wait", "reopen", "close"}


async def use_everything(
    connection: Any, pending: Sequence[Any], futures: Sequence[Any] = (), *, reopens: bool = True
) -> str:
    """Every method of a connection and of the futures of its requests.

    Args:
      connection: of threads or coroutines.
      pending: requests of its that were started.
      futures: those of others.
      reopens: whether to open connections of its own, as in a loop of its own.
    """
    names = {name for name in dir(connection) if not name.startswith("_")}
    known = {*REFUSED, *HARMLESS, *OTHERS}
    assert names <= known, f"without a use: {names - known}"
    for name in names & HARMLESS.keys():
        assert HARMLESS[name](connection), name
    repr(connection)
    for name in names & REFUSED.keys():
        await refused(lambda: getattr(connection, name)(*REFUSED[name]))  # noqa: B023  # at once
    await refused(lambda: connection.send(extension(1000), timeout=0.001))
    for one in pending:
        assert "poll" not in names or connection.poll(one)
        await refused(lambda: connection.wait(one))  # noqa: B023
    for future in futures:
        await _use_future(future)
    if futures:
        done, _ = concurrent.futures.wait(futures, timeout=60)
        assert done == set(futures)
    # grpcio itself does not work in forked children.
    if reopens and forced() == "http2":
        again = connection.reopen()
        if inspect.isawaitable(again):
            async with await again as own:
                assert await own.send(extension(1008)) == extension(1008)
        else:
            with again, connect(connection.address, timeout=10) as fresh:
                assert again.send(extension(1008)) == extension(1008)
                assert fresh.send(extension(1007)) == extension(1007)
    closed = connection.close()
    if inspect.isawaitable(closed):
        await closed
    return "refused"


async def _use_future(future: concurrent.futures.Future[Any]) -> None:
    called: list[object] = []
    await refused(lambda: future.result(5))
    _check(future.exception(5), time.perf_counter())
    assert future.done()
    assert not future.running()
    assert not future.cancel()
    assert not future.cancelled()
    future.add_done_callback(called.append)
    assert called == [future]


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


Act: TypeAlias = Callable[[list[Any], list[Any], list[Any]], Any]

ACTS: list[Act] = [
    lambda holder, pending, futures: use_everything(holder[0], pending, futures),
    lambda holder, *_: refused(lambda: holder[0].send(extension(1000), timeout=0.01)),
    _forget,
    lambda *_: _exit(),
]
"""What a child does; takes a list with the connection, and those of its requests."""


def told(act: Act, *held: list[Any]) -> str:
    """Does something, and tells how many refusals there were and how long the slowest took."""
    _seconds.clear()
    coroutine = act(*held)
    if coroutine is not None:
        asyncio.new_event_loop().run_until_complete(coroutine)  # A loop of the child's own.
    return json.dumps([len(_seconds), max(_seconds, default=0.0)])
