"""Looking before sleeping: how long, when not, and that nobody pays for it."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dm_env_rpc_client import DmEnvAdaptor, make
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.system import polling
from dm_env_rpc_client.system.polling import SPIN_SECONDS, BusyWait, at_work
from tests.support.scripted import served_echo


class Clock:
    """A processor on which each look takes a microsecond."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self.away: Callable[[], float] = lambda: 0.0
        """How long others have the processor when it is offered to them."""

        self.comes_after: float | None = None
        """How long after the begin of a wait the input comes; None for never."""

        self.begun = 0.0

    def look(self, expected: str) -> str | None:
        assert expected == "input"
        self.looks += 1
        self.now += 1e-6
        if self.comes_after is not None and self.now - self.begun >= self.comes_after:
            return "found"
        return None

    def offer(self) -> None:
        self.now += self.away()

    def wait(self, place: BusyWait, comes_after: float | None) -> tuple[str | None, int]:
        """Waits at a place; returns what was found, and the number of looks."""
        self.begun, self.looks, self.comes_after = self.now, 0, comes_after
        return place.spin(self.look, "input"), self.looks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(polling, "time", SimpleNamespace(perf_counter=lambda: made.now))
    monkeypatch.setattr(polling, "os", SimpleNamespace(sched_yield=made.offer))
    monkeypatch.setattr(polling, "processors", lambda: 2)
    monkeypatch.setattr(polling, "threads", {threading.get_ident()})
    return made


SOON = SPIN_SECONDS / 4
LATE = None


def test_input_that_comes_soon_is_found(clock: Clock) -> None:
    place = BusyWait()
    for _ in range(500):
        found, looks = clock.wait(place, SOON)
        assert found == "found"
        assert looks == pytest.approx(SOON / 1e-6, abs=2)


def test_it_looks_for_a_limited_time(clock: Clock) -> None:
    begin = clock.now
    assert clock.wait(BusyWait(), LATE)[0] is None
    assert SPIN_SECONDS <= clock.now - begin <= 1.1 * SPIN_SECONDS


def test_who_waits_in_vain_looks_more_and_more_seldom(clock: Clock) -> None:
    place = BusyWait()
    looked = [number for number in range(20_000) if clock.wait(place, LATE)[1]]
    gaps = [after - before - 1 for before, after in itertools.pairwise(looked)]
    assert gaps[:8] == [16, 32, 64, 128, 256, 512, 1024, 1024]
    assert len(looked) * SPIN_SECONDS < 20_000 * SPIN_SECONDS / 500


def test_it_does_not_look_while_other_threads_need_the_interpreter(clock: Clock) -> None:
    place = BusyWait()
    begun, ends = threading.Event(), threading.Event()

    def work() -> None:
        with at_work():
            begun.set()
            ends.wait(10)

    other = threading.Thread(target=work)
    other.start()
    try:
        assert begun.wait(10)
        assert clock.wait(place, SOON) == (None, 0)
    finally:
        ends.set()
        other.join()
    assert clock.wait(place, SOON)[0] == "found"


def test_with_one_processor_it_never_looks(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "processors", lambda: 1)
    place = BusyWait()
    assert all(clock.wait(place, SOON) == (None, 0) for _ in range(5_000))


def test_threads_of_the_parent_are_not_those_of_a_forked_child() -> None:
    with at_work():
        child = os.fork()
        if not child:
            os._exit(len(polling.threads))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert threading.get_ident() not in polling.threads


# At both ends.


@pytest.fixture
def slow() -> Iterator[DmEnvAdaptor]:
    """An environment in another process whose steps take 10 ms."""
    settings = {"seconds": 0.01}
    with served_echo() as server, make(server.address, settings, transport="http2") as environment:
        environment.reset()
        yield environment


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the looks in this process take, in seconds."""
    # Nobody looks beside a thread at work, such as one that an earlier test has left here.
    polling.threads.clear()
    taken: list[float] = []
    spin = BusyWait.spin

    def timed(place: BusyWait, *arguments: Any) -> Any:
        begin = time.thread_time()
        try:
            return spin(place, *arguments)
        finally:
            taken.append(time.thread_time() - begin)

    monkeypatch.setattr(BusyWait, "spin", timed)
    return taken


def test_ends_in_one_process_do_not_take_the_interpreter_from_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: set[threading.Thread] = set()  # An error would end in the server's log.

    def look() -> None:
        looked.add(threading.current_thread())

    with serve(Catch, transport="http2") as server, make(server.address) as environment:
        monkeypatch.setattr(os, "sched_yield", look)
        environment.reset()
        for _ in range(200):
            environment.step({"paddle": 0})
    # The server's thread looks at times, but not while this one waits.
    assert threading.current_thread() not in looked


def test_slow_servers_are_waited_for_asleep(slow: DmEnvAdaptor, looks: list[float]) -> None:
    for _ in range(60):
        slow.step({"value": 0})
    # Asked at first, and then only between rests.
    assert 1 <= len(looks) <= 10
    assert sum(taken > SPIN_SECONDS / 4 for taken in looks) <= 5
