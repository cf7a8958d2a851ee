"""A server that is waited for, and signals that do not wake the thread that waits."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.system import waiting
from dm_env_rpc_client.system.waiting import (
    InterruptibleCondition,
    InterruptibleEvent,
)
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch

GIVE_UP_SECONDS = 20.0


@contextlib.contextmanager
def interrupted(stop: Callable[[], object]) -> Iterator[None]:
    """The main thread gets Ctrl-C while it sleeps, by way of another thread; then `stop`."""
    main = threading.main_thread()
    assert threading.current_thread() is main
    over = threading.Event()

    def is_asleep() -> bool:
        # More than one look, since it may sleep for other reasons before it waits.
        for _ in range(5):
            stat = Path(f"/proc/self/task/{main.native_id}/stat").read_text()
            if stat.rpartition(")")[2].split()[0] != "S":
                return False
            time.sleep(0.01)  # Between two looks.
        return True

    def interrupt() -> None:
        assert settles(is_asleep)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not over.wait(GIVE_UP_SECONDS):
            stop()

    thread = threading.Thread(target=interrupt)
    begun = Stopwatch()
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        over.set()
        thread.join()
    assert begun.within(5.0)


SERVERS: dict[str, Callable[[], Any]] = {
    "http2": lambda: serve(Catch, transport="http2"),
    "grpc": lambda: serve(Catch, transport="grpc"),
    "worker processes": lambda: serve(Catch, processes=1),
    "gym_socket": lambda: gym_socket.serve({"catch": Catch}, "localhost:0"),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_a_signal_ends_the_wait_for_a_server(kind: str) -> None:
    with SERVERS[kind]() as server, interrupted(server.stop):
        server.wait()


class _ToldError(BaseException):
    """What the handler of a signal raises."""


def interrupt_anywhere(wait: Callable[[float], object], within: float = 3e-4) -> None:
    """Has a signal's handler raise at random points of many waits; nothing else may be raised.

    Args:
      wait: waits for the seconds that it is called with, which are few.
      within: seconds after which a signal comes at the latest.
    """
    chance = random.Random(7)
    told = False

    def tell(number: int, frame: object) -> None:
        nonlocal told
        # A lock that stays locked would have it sleep for good.
        assert not told, "what a signal's handler raised has not ended the wait"
        told = True
        raise _ToldError

    def wait_until_told() -> None:
        seconds = 1e-6 + chance.random() * within
        signal.setitimer(signal.ITIMER_REAL, seconds, GIVE_UP_SECONDS)
        while not told:
            wait(chance.choice((0.0, 1e-5)))  # The points are before and behind a sleep.

    before = signal.signal(signal.SIGALRM, tell)
    timer = signal.getitimer(signal.ITIMER_REAL)
    gc.disable()  # What a finalizer raises is lost.
    trace = sys.gettrace()
    # Coverage takes a lock on every call, which would stay locked.
    sys.settrace(None)
    try:
        for _ in range(4000):
            told = False
            # The loop is in a function of its own: what is raised at its jump back passes by the
            # handlers of a block around the loop in Python 3.13.
            with contextlib.suppress(_ToldError):
                wait_until_told()
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
        sys.settrace(trace)
        gc.enable()


@pytest.mark.parametrize("kind", SERVERS)
def test_what_a_signals_handler_raises_anywhere_in_the_wait_for_a_server_is_raised(
    kind: str,
) -> None:
    with SERVERS[kind]() as server:
        interrupt_anywhere(server.wait)
        assert not server.wait(0.01)
        server.stop()
        assert server.wait(GIVE_UP_SECONDS)


@pytest.fixture
def _without_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not woken sleeps on."""
    monkeypatch.setattr(waiting, "PART_SECONDS", 1000.0)


@pytest.mark.usefixtures("_without_parts")
def test_all_that_wait_for_a_condition_look_again_when_they_are_told() -> None:
    condition = InterruptibleCondition()
    count = 0
    met: list[int] = []

    def wait(wanted: int) -> None:
        assert condition.wait_for(lambda: count >= wanted)
        met.append(wanted)

    threads = [threading.Thread(target=wait, args=(wanted,)) for wanted in (1, 1, 2)]
    for thread in threads:
        thread.start()
    assert settles(lambda: len(condition._sleepers) == 3)
    count = 1
    condition.notify_all()
    assert settles(lambda: met == [1, 1])
    count = 2
    condition.notify_all()
    for thread in threads:
        thread.join(GIVE_UP_SECONDS)
    assert met == [1, 1, 2]
    assert not condition.wait_for(lambda: count > 2, 0.02)
    assert condition.wait_for(lambda: count == 2, 0.0)
    assert not condition._sleepers


def test_the_handler_of_a_signal_may_set_the_event_that_it_interrupts() -> None:
    chance = random.Random(7)
    event = InterruptibleEvent()
    before = signal.signal(signal.SIGALRM, lambda number, frame: event.set())
    timer = signal.getitimer(signal.ITIMER_REAL)
    try:
        for _ in range(4000):
            event = InterruptibleEvent()
            signal.setitimer(signal.ITIMER_REAL, 1e-6 + chance.random() * 2e-4)
            while not event.wait(chance.choice((0.0, 1e-5))):
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
