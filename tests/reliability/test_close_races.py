"""Rows 36 and 37: closing and poisoning while other threads send, wait and are interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    connect,
)
from dm_env_rpc_client.testing import ScriptedServer
from tests.scripted import extension

ROUNDS = int(os.environ.get("RACE_ROUNDS", "150"))


@pytest.fixture
def quick_switches() -> Any:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_row_36_close_beside_submit_send_and_deadlines(echo_server: ScriptedServer) -> None:
    """Each ends with its answer or with an error that does not blame the server."""
    unexpected: list[BaseException] = []
    for number in range(ROUNDS):
        connection = connect(echo_server.address, request_timeout=20)
        barrier = threading.Barrier(4)

        def attempt(act: Any) -> None:
            barrier.wait()  # noqa: B023
            try:
                act()
            except (ConnectionClosedError, ConnectionLostError, DeadlineExceededError) as error:
                if "closed" not in str(error) and "in time" not in str(error):
                    unexpected.append(error)
            except BaseException as error:
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
    assert unexpected == []


INTERRUPTED = """
import concurrent.futures, os, signal, sys, threading, time
from dm_env_rpc_client import connect
from tests.both_transports import obey
from tests.scripted import extension

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
        time.sleep(0.01)
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


def test_row_37_an_interrupt_in_close_leaves_no_thread_waiting() -> None:
    rounds = int(os.environ.get("INTERRUPT_ROUNDS", "20"))

    def hold(requests: Any, context: Any) -> Any:
        for _ in requests:
            pass
        return iter(())

    with ScriptedServer(hold) as server:
        finished = subprocess.run(
            [sys.executable, "-c", INTERRUPTED, server.address, str(rounds), "900"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr
    hung, wrong, interrupted = map(int, finished.stdout.split())
    assert (hung, wrong) == (0, 0)
    assert interrupted > 0
