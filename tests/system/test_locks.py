"""Locks and interrupts."""

from __future__ import annotations

import random
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client.system import locks
from dm_env_rpc_client.system.locks import Kept


class Interrupt(BaseException):
    pass


def with_it(lock: Any) -> None:
    while True:
        with lock:
            pass
        with lock:
            pass


def take_it(lock: Any) -> None:
    while True:
        held: list[bool] = []
        try:
            locks.take(lock, held)
        finally:
            if held:
                lock.release()


def take_it_in_time(lock: Any) -> None:
    while True:
        held: list[bool] = []
        try:
            locks.take(lock, held, 5.0)
        finally:
            if held:
                lock.release()


KINDS: dict[str, Callable[[], Any]] = {
    "Lock": locks.make_lock,
    "RLock": locks.make_rlock,
    # What these are from Python 3.14 on, on any Python.
    "kept Lock": lambda: Kept(threading.Lock()),
    "kept RLock": lambda: Kept(threading.RLock()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [with_it, take_it, take_it_in_time])
def test_an_interrupt_leaves_no_lock_locked(use: Callable[[Any], None], kind: str) -> None:
    chance = random.Random(0)

    def interrupt(*_: object) -> None:
        raise Interrupt

    free: list[bool] = []
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(100):
            lock = KINDS[kind]()
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 4e-4))
                use(lock)
            except Interrupt:
                pass
            # Of an RLock only another thread can tell.
            other = threading.Thread(target=lambda lock=lock: free.append(lock.acquire(False)))
            other.start()
            other.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert free == [True] * 100


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_lock(kind: str) -> None:
    lock = KINDS[kind]()
    again = "RLock" in kind
    with lock:
        assert lock.acquire(blocking=False) is again
        if again:
            lock.release()
        told: list[bool] = []
        other = threading.Thread(target=lambda: told.append(lock.acquire(timeout=0.01)))
        other.start()
        other.join()
        assert told == [False]
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError):
        lock.release()


@pytest.mark.parametrize("kind", KINDS)
def test_a_condition_takes_it(kind: str) -> None:
    condition = threading.Condition(KINDS[kind]())
    ready: list[bool] = []

    def work() -> None:
        with condition:
            ready.append(True)
            condition.notify()

    other = threading.Thread(target=work)
    with condition:
        other.start()
        assert condition.wait_for(lambda: ready, 60)
    other.join()


def test_locks_of_the_package_are_made_here() -> None:
    package = Path(locks.__file__).parents[1]
    # The server in one file stands alone.
    own = (Path(locks.__file__), package / "launch" / "standalone" / "dm_env_rpc_server.py")
    found = [
        str(path)
        for path in package.rglob("*.py")
        if path not in own and re.search(r"threading\.R?Lock\(", path.read_text())
    ]
    assert found == []
