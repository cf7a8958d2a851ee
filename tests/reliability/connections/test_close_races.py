"""Rows 36 and 37: closing and poisoning while other threads send, wait and are interrupted."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    connect,
    connect_async,
)
from dm_env_rpc_client.testing import ScriptedServer
from tests.reliability.echoing import Echoing
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.programs import run_python
from tests.support.scripted import extension


def is_plain(error: BaseException) -> bool:
    """Whether an error says that the connection was closed, or the answer late."""
    kinds = (ConnectionClosedError, ConnectionLostError, DeadlineExceededError)
    return isinstance(error, kinds) and ("closed" in str(error) or "in time" in str(error))


@pytest.mark.row(36)
@pytest.mark.usefixtures("quick_switches")
@counts(100, 25_000, seconds=3 * 3600)  # with each of two transports and two servers
def test_row_36_close_beside_submit_send_and_deadlines(
    echo_server: Echoing, count: int, seen: Seen
) -> None:
    """Each ends with its answer or with an error that does not blame the server."""
    unexpected: list[BaseException] = []
    for number in range(count):
        connection = connect(echo_server.address, request_timeout=20)
        barrier = threading.Barrier(4)

        def attempt(act: Any) -> None:
            barrier.wait()  # noqa: B023
            try:
                act()
            except BaseException as error:
                if not is_plain(error):
                    unexpected.append(error)

        def submit() -> None:
            assert connection.submit(extension(number)).result(20) == extension(number)  # noqa: B023

        def send() -> None:
            assert connection.send(extension(number)) == extension(number)  # noqa: B023

        def late() -> None:
            connection.send(extension(number), timeout=0.0005)  # noqa: B023

        acts = [connection.close, submit, send, late if number % 3 == 0 else send]
        threads = [threading.Thread(target=attempt, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        connection.close()
    seen(rounds=count, errors_that_blame_the_server=len(unexpected))
    assert unexpected == []


@pytest.mark.row(36)
@counts(100, 5_000)  # with each of two transports and two servers
async def test_row_36_close_beside_send_and_deadlines_of_coroutines(
    echo_server: Echoing, count: int, seen: Seen
) -> None:
    unexpected: list[BaseException] = []
    right = 0
    chance = random.Random(0)

    async def attempt(act: Coroutine[Any, Any, Any], expected: Any) -> None:
        nonlocal right
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        try:
            answer = await act
        except BaseException as error:
            if not is_plain(error):
                unexpected.append(error)
        else:
            assert answer == expected
            right += 1

    for number in range(count):
        connection = await connect_async(echo_server.address, request_timeout=20)
        first, second = extension(number), extension(number + 1)
        late = 0.0005 if number % 3 == 0 else None
        await asyncio.gather(
            attempt(connection.send(first), first),
            attempt(connection.send(second, timeout=late), second),
            attempt(connection.close(), None),
        )
        await connection.close()
    seen(rounds_of_coroutines=count, errors_that_blame_the_server=len(unexpected))
    assert unexpected == []
    assert right >= count  # Each close, at least.


INTERRUPTED = """
import concurrent.futures, os, signal, sys, threading, time
from dm_env_rpc_client import connect
from tests.support.both_transports import obey
from tests.support.scripted import extension

obey()
address, rounds, pending_count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hung = wrong = interrupted = 0
for number in range(rounds):
    connection = connect(address, request_timeout=None)
    outcomes = []

    def wait(pending):
        try:
            outcomes.append(connection.wait(pending))
        except Exception as error:
            outcomes.append(error)

    # Answered by nobody: the server holds back every answer.
    waiting = [connection.start(extension(1)) for _ in range(pending_count)]
    threads = [threading.Thread(target=wait, args=(one,)) for one in waiting[:20]]
    for thread in threads:
        thread.start()
    timer = threading.Timer(0.0005 + 0.0001 * (number % 40), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        connection.close()
        timer.join()
        time.sleep(0.01)  # The signal arrives here at the latest.
    except KeyboardInterrupt:
        interrupted += 1
        if connection.is_usable:
            connection.close()  # The interrupt came before it began.
    for thread in threads:
        thread.join(10)
        hung += thread.is_alive()
    wrong += sum(not isinstance(outcome, Exception) for outcome in outcomes)
    if hung:
        break
    try:
        connection.close()
    except KeyboardInterrupt:
        pass
print(hung, wrong, interrupted)
"""


@pytest.mark.row(37)
@counts(20, 2_500)  # on each of two transports
def test_row_37_an_interrupt_in_close_leaves_no_thread_waiting(count: int, seen: Seen) -> None:
    def hold(requests: Any, context: Any) -> Any:
        for _ in requests:
            pass
        return iter(())

    with ScriptedServer(hold) as server:
        finished = run_python("-c", INTERRUPTED, server.address, count, 900, timeout=3600)
    hung, wrong, interrupted = map(int, finished.stdout.split())
    seen(signals=count, interrupted_closes=interrupted, hung_threads=hung, stale_answers=wrong)
    assert (hung, wrong) == (0, 0)
    assert interrupted > 0
