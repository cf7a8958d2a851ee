"""Locks and interrupts."""

from __future__ import annotations

import dis
import random
import re
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client.system import locks
from dm_env_rpc_client.system.locks import Kept

PACKAGE = Path(locks.__file__).parents[1]
# Its threads are not interrupted, and it imports nothing of the package.
STANDALONE = PACKAGE / "launch" / "standalone" / "dm_env_rpc_server.py"


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


def try_it(lock: Any) -> None:
    trying = locks.trying(lock)
    while True:
        held: list[bool] = []
        try:
            held.extend(iter(trying, False))
            assert held == [True]
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
@pytest.mark.parametrize("use", [with_it, take_it, take_it_in_time, try_it])
def test_an_interrupt_leaves_no_lock_locked(use: Callable[[Any], None], kind: str) -> None:
    if use is try_it and "RLock" in kind:
        pytest.skip("`trying` is for locks that are not reentrant")
    chance = random.Random(0)

    def interrupt(*_: object) -> None:
        raise Interrupt

    free: list[bool] = []
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(100):
            lock = KINDS[kind]()
            try:
                # It comes again, since a callback of the garbage collector may swallow the first.
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 4e-4), 1.0)
                use(lock)
            except Interrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
            # Of an RLock only another thread can tell.
            other = threading.Thread(target=lambda lock=lock: free.append(lock.acquire(False)))
            other.start()
            other.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert free == [True] * 100


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _uncovered_jumps(source: str, name: str) -> list[str]:
    """Returns the ends of loops within a `try` or `with` that its handlers do not cover.

    CPython leaves the jump back of some loops out of its exception tables: in 3.13 that of
    `while condition`, in 3.14 that of a loop whose last statement is an `if`. If an interrupt is
    raised at that jump, no `except` or `finally` runs, and a lock stays locked. `while True` has no
    such jump unless its body ends with an `if`. A loop in a function of its own needs none: the
    `try` around the call covers it.
    """
    found = []
    for code in _codes(compile(source, name, "exec")):
        # `dis` has no public function for it, and the types are those of the oldest Python.
        table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
        instructions = list(dis.get_instructions(code))
        names = {each.offset: each.opname for each in instructions}
        # Other handlers are those of generators and comprehensions, which only pass on.
        handlers = [each for each in table if names[each.target] == "PUSH_EXC_INFO"]

        def of(offset: int, handlers: list[Any] = handlers) -> set[int]:
            return {each.target for each in handlers if each.start <= offset < each.end}

        for place, jump in enumerate(instructions):
            if jump.opname == "JUMP_BACKWARD":
                # The last ones of a body may be outside, too: three were too few for two loops that
                # ended with an `if`.
                before = (each.offset for each in instructions[max(0, place - 5) : place])
                at = jump.offset
                around = set().union(*map(of, before)) & of(jump.argval)
                if around - of(at):
                    lines = (line for start, end, line in code.co_lines() if start <= at < end)
                    found.append(f"{name}:{next(lines)} ({code.co_name})")
    return found


@pytest.mark.skipif(
    sys.version_info < (3, 13), reason="this Python raises no interrupt outside its tables"
)
def test_loops_of_the_package_are_covered_by_the_handlers_around_them() -> None:
    example = "try:\n  while f():\n    g()\n    if h(): i()\nfinally: j()\n"
    line = 4 if sys.version_info >= (3, 14) else 2
    assert _uncovered_jumps(example, "example") == [f"example:{line} (<module>)"]
    fine = example.replace("f()", "True").replace("if h(): i()", "if h(): break\n    i()")
    assert _uncovered_jumps(fine, "example") == []
    paths = (path for path in PACKAGE.rglob("*.py") if path != STANDALONE)
    assert [each for path in paths for each in _uncovered_jumps(path.read_text(), str(path))] == []


def test_locks_of_the_package_are_made_here() -> None:
    own = (Path(locks.__file__), STANDALONE)
    found = [
        str(path)
        for path in PACKAGE.rglob("*.py")
        if path not in own and re.search(r"threading\.R?Lock\(", path.read_text())
    ]
    assert found == []
