"""Rows 16 and 32, in processes of their own.

    python -m tests.reliability.fork_scenarios ADDRESS ROUNDS NAME...

pytest's own process holds servers and grpcio, which do not survive a fork.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from dm_env_rpc_client import (
    AsyncConnection,
    Connection,
    ConnectionLostError,
    connect,
    connect_async,
    make,
)
from tests.both_transports import forced, obey
from tests.reliability.forking import Child
from tests.scripted import extension


def refused(act: Callable[[], Any]) -> str:
    """The text of the error with which `act` is refused."""
    try:
        act()
    except ConnectionLostError as error:
        text = str(error)
        assert "forked" in text, text
        return text
    raise AssertionError("it was not refused")


async def refused_async(attempt: Coroutine[Any, Any, Any]) -> None:
    try:
        await attempt
    except ConnectionLostError as error:
        text = str(error)
    assert "forked" in text, text


def use_everything(
    connection: Connection, pending: list[Any], futures: list[concurrent.futures.Future[Any]]
) -> str:
    """Every method of a connection, in a child that must not touch its socket."""
    refused(lambda: connection.send(extension(1000)))
    refused(lambda: connection.send(extension(1000), timeout=0.001))
    refused(lambda: connection.submit(extension(1001)))
    refused(lambda: connection.start(extension(1002)))
    refused(lambda: connection.start_all([extension(1003)]))
    for one in pending:
        assert connection.poll(one)
        refused(functools.partial(connection.wait, one))
    for future in futures:
        refused(functools.partial(future.result, 5))
        assert isinstance(future.exception(5), ConnectionLostError)
        assert future.done()
    if futures:
        done, _ = concurrent.futures.wait(futures, timeout=5)
        assert done == set(futures)
    assert connection.fileno() == -1
    assert connection.has_unread()
    assert not connection.is_usable
    repr(connection)
    connection.close()
    if forced() == "http2":  # grpcio itself does not work in forked children.
        with connect(connection.address, timeout=10) as fresh:
            assert fresh.send(extension(7)) == extension(7)
        with connection.reopen() as again:
            assert again.send(extension(8)) == extension(8)
    return "refused"


async def use_everything_async(connection: AsyncConnection, pending: list[Any]) -> str:
    await refused_async(connection.send(extension(1000)))
    await refused_async(connection.send(extension(1000), timeout=0.001))
    await refused_async(connection.start(extension(1001)))
    for one in pending:
        await refused_async(connection.wait(one))
    assert not connection.is_usable
    await connection.close()
    return "refused"


def in_flight(address: str, count: int, with_futures: bool) -> None:
    """The child is refused everything, and the parent gets its answers."""
    with connect(address, request_timeout=20) as connection:
        connection.send(extension(50))
        futures, pending = [], []
        if with_futures:
            futures = [connection.submit(extension(number)) for number in range(count)]
        else:
            pending = [connection.start(extension(number)) for number in range(count)]
        child = Child(lambda: use_everything(connection, pending, futures))
        assert child.result() == "refused"
        for number, one in enumerate(pending):
            assert connection.wait(one) == extension(number)
        for number, future in enumerate(futures):
            assert future.result(20) == extension(number)
        assert connection.send(extension(99)) == extension(99)


def deadline(address: str) -> None:
    """A deadline in the child leaves the parent's connection open."""
    with connect(address, request_timeout=20) as connection:
        pending = connection.start(extension(1))
        Child(lambda: refused(lambda: connection.send(extension(2), timeout=0.01))).result()
        assert connection.wait(pending) == extension(1)
        assert connection.send(extension(3)) == extension(3)


def garbage(address: str) -> None:
    """A child that collects garbage, or leaves `with` blocks, changes nothing."""
    holder = [connect(address, request_timeout=20)]
    pending = holder[0].start(extension(1))

    def forget() -> str:
        try:
            with holder[0]:
                raise KeyError
        except KeyError:
            pass
        holder.clear()
        gc.collect()
        return "forgotten"

    assert Child(forget).result() == "forgotten"
    assert holder[0].wait(pending) == extension(1)
    assert holder[0].send(extension(2)) == extension(2)
    holder[0].close()


def exits(address: str) -> None:
    """A child that runs the interpreter's exit handlers changes nothing."""
    connection = connect(address, request_timeout=20)
    pending = connection.start(extension(1))
    child = os.fork()
    if child == 0:
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    assert connection.wait(pending) == extension(1)
    assert connection.send(extension(2)) == extension(2)
    connection.close()


def leaves(address: str) -> None:
    """The server sees the parent leave although the child lives: it keeps no copy of the socket."""
    env = make(address)
    env.reset()
    watcher = connect(address)
    release, hold = os.pipe()

    def live_on() -> str:
        os.close(hold)
        os.read(release, 1)
        return "lived"

    child = Child(live_on)
    # As a kill would: no LeaveWorld, no GOAWAY, no shutdown of the connection.
    os.close(env._connection.fileno())  # type: ignore[union-attr]
    print("left", flush=True)
    sys.stdin.readline()
    os.close(hold)
    assert child.result() == "lived"
    watcher.close()
    os._exit(0)


def coroutines(address: str, count: int) -> None:
    """A child with a loop of its own is refused, and the parent gets its answers."""

    def run_coroutine(connection: AsyncConnection, pending: list[Any]) -> str:
        loop = asyncio.new_event_loop()
        return loop.run_until_complete(use_everything_async(connection, pending))

    async def scenario() -> None:
        connection = await connect_async(address, request_timeout=20)
        await connection.send(extension(50))
        pending = [await connection.start(extension(number)) for number in range(count)]
        child = Child(lambda: run_coroutine(connection, pending))
        assert await asyncio.to_thread(child.result) == "refused"
        for number, one in enumerate(pending):
            assert await connection.wait(one) == extension(number)
        assert await connection.send(extension(99)) == extension(99)
        await connection.close()

    asyncio.run(scenario())


def same_loop(address: str) -> None:
    """A coroutine that forks and goes on in the child, on the parent's loop and selector."""

    async def scenario() -> None:
        connection = await connect_async(address, request_timeout=20)
        pending = [await connection.start(extension(number)) for number in range(2)]
        await asyncio.sleep(0)  # The requests are written.
        from_child, to_parent = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                # The loop goes round while the answers arrive; the parent does nothing.
                for _ in range(100):
                    await asyncio.sleep(0)
                    time.sleep(0.01)
                text = await use_everything_async(connection, pending)
                os.write(to_parent, text.encode())
            except BaseException as error:
                os.write(to_parent, repr(error).encode())
            finally:
                os._exit(0)
        os.close(to_parent)
        os.waitpid(child, 0)
        said = os.read(from_child, 4000)
        assert said == b"refused", said
        for number, one in enumerate(pending):
            assert await connection.wait(one) == extension(number)
        assert await connection.send(extension(9)) == extension(9)
        await connection.close()

    asyncio.run(scenario())


SCENARIOS: dict[str, Callable[[str], None]] = {
    "a deadline in the child": deadline,
    "garbage collection in the child": garbage,
    "the exit of the child": exits,
    "the parent's loop in the child": same_loop,
}
for _count in range(3):
    SCENARIOS[f"{_count} coroutines"] = functools.partial(coroutines, count=_count)
    for _kind in ("started", "futures"):
        SCENARIOS[f"{_count} pending, {_kind}"] = functools.partial(
            in_flight, count=_count, with_futures=_kind == "futures"
        )

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads.
    obey()
    target, rounds, *names = sys.argv[1:]
    for name in names:
        try:
            for _ in range(int(rounds)):
                {**SCENARIOS, "leaves": leaves}[name](target)
        except Exception:
            print(f"{name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        else:
            print(f"right: {name}", flush=True)
