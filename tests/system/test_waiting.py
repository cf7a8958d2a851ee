"""A server that is waited for, and signals that do not wake the thread that waits."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import listen
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.system.waiting import PART_SECONDS, wait_in_parts
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
    "gym_socket": lambda: gym_socket.serve({"catch": Catch}),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_a_signal_ends_the_wait_for_a_server(kind: str) -> None:
    with SERVERS[kind]() as server, interrupted(server.stop):
        server.wait()


def test_a_signal_ends_the_wait_for_servers_that_dial_in() -> None:
    with listen("localhost:0") as incoming, interrupted(incoming.close):
        incoming.make(timeout=None)


def test_a_wait_has_its_timeout_and_ends_when_it_is_over() -> None:
    asked: list[float] = []

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        time.sleep(seconds)  # It waits as long as it was asked to, and in vain.
        return False

    assert not wait_in_parts(wait, 1.5 * PART_SECONDS)
    assert asked[0] == PART_SECONDS
    assert sum(asked) <= 1.5 * PART_SECONDS
    assert not wait_in_parts(wait, -1.0)
    assert asked[-1] == 0.0
    answers = iter([False, False, True])
    assert wait_in_parts(lambda seconds: next(answers), None)
    answers = iter([False, True])
    assert wait_in_parts(lambda seconds: next(answers), 1000.0)
