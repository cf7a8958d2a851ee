"""Rows 16 and 32, in a process of its own: forks with requests pending, again and again.

    python -m tests.reliability.processes.fork_rounds KIND ADDRESS ROUNDS

The parent has one connection for all rounds. It prints, as JSON, how many children were refused
how often, and which answers the parent got.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from dm_env_rpc_client import AsyncConnection, Connection, connect, connect_async
from tests.reliability.processes.fork_children import ACTS, told, use_everything
from tests.reliability.processes.forking import Child
from tests.support.both_transports import obey
from tests.support.scripted import extension

SECONDS = 20.0
"""How long an answer may take that is not lost."""


class Tally:
    """Counts what children and the parent saw."""

    def __init__(self) -> None:
        self.forks = self.refusals = self.right = self.wrong = self.lost = 0
        self.slowest = 0.0

    def child(self, text: str) -> None:
        refusals, slowest = json.loads(text)
        self.forks += 1
        self.refusals += refusals
        self.slowest = max(self.slowest, slowest)

    def answer(self, number: int, found: object) -> None:
        if isinstance(found, Exception):
            print(f"lost the answer to {number}: {found!r}", file=sys.stderr)
            self.lost += 1
        elif found == extension(number):
            self.right += 1
        else:
            self.wrong += 1


def outcome(wait: Callable[[], Any]) -> Any:
    try:
        return wait()
    except Exception as error:
        return error


def forks(connection: Connection, kind: str, rounds: int) -> Tally:
    """Forks with requests that were started, or with futures, or with futures with callbacks."""
    tally = Tally()
    for number in range(rounds):
        numbers = range(number % 3)
        pending: list[Any] = []
        futures: list[Any] = []
        called: list[object] = []
        for one in numbers:
            if kind == "started":
                pending.append(connection.start(extension(one)))
            else:
                futures.append(connection.submit(extension(one)))
                if kind == "callbacks":  # A thread of the parent reads.
                    futures[-1].add_done_callback(called.append)
        holder = [connection]
        act = ACTS[number // 3 % len(ACTS)]
        child = Child(lambda: told(act, holder, pending, futures))  # noqa: B023  # at once
        tally.child(child.result())
        for one, waiting in zip(numbers, pending or futures, strict=True):
            wait = connection.wait if pending else _result
            tally.answer(one, outcome(lambda: wait(waiting)))  # noqa: B023
        tally.answer(99, outcome(lambda: connection.send(extension(99))))
    return tally


def _result(future: Any) -> Any:
    return future.result(SECONDS)


async def forks_async(connection: AsyncConnection, rounds: int) -> Tally:
    """Forks beside coroutines."""
    tally = Tally()

    async def answer(number: int, waiting: Any) -> None:
        try:
            tally.answer(number, await waiting)
        except Exception as error:
            tally.answer(number, error)

    for number in range(rounds):
        numbers = range(number % 3)
        pending = [await connection.start(extension(one)) for one in numbers]
        await asyncio.sleep(0)
        holder = [connection]
        act = ACTS[number // 3 % len(ACTS)]
        # In the thread of the loop, which finds itself in the child as well.
        child = Child(lambda: told(act, holder, pending, []))  # noqa: B023  # at once
        tally.child(await asyncio.to_thread(child.result))
        for one, waiting in zip(numbers, pending, strict=True):
            await answer(one, connection.wait(waiting))
        await answer(99, connection.send(extension(99)))
    return tally


async def forks_on_the_loop(connection: AsyncConnection, rounds: int) -> Tally:
    """Coroutines that fork and go on in the child, on the parent's loop and selector."""
    tally = Tally()
    for _ in range(rounds):
        pending = [await connection.start(extension(number)) for number in range(2)]
        await asyncio.sleep(0)  # The requests are written.
        from_child, to_parent = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                # The loop goes round while the answers arrive; the parent does nothing.
                for _ in range(100):
                    await asyncio.sleep(0)
                    time.sleep(0.01)  # A second in all.
                text = await use_everything(connection, pending, reopens=False)
                os.write(to_parent, text.encode())
            except BaseException as error:
                os.write(to_parent, repr(error).encode())
            finally:
                os._exit(0)
        os.close(to_parent)
        os.waitpid(child, 0)
        with os.fdopen(from_child) as said:
            tally.refusals += said.read() == "refused"
        for number, one in enumerate(pending):
            tally.answer(number, await connection.wait(one))
        tally.answer(9, await connection.send(extension(9)))
    return tally


async def _main_async(kind: str, address: str, rounds: int) -> Tally:
    run = forks_async if kind == "coroutines" else forks_on_the_loop
    async with await connect_async(address, request_timeout=SECONDS) as connection:
        return await run(connection, rounds)


def main(kind: str, address: str, rounds: int) -> Tally:
    if kind in ("coroutines", "same loop"):
        return asyncio.run(_main_async(kind, address, rounds))
    with connect(address, request_timeout=SECONDS) as connection:
        return forks(connection, kind, rounds)


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads.
    obey()
    print(json.dumps(vars(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
