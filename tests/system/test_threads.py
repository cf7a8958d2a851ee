"""Work in several threads, and what of it is left when the interpreter exits."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import sys
import threading
from typing import Any

import pytest

from dm_env_rpc_client import ConnectionLostError, connect
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.system.waiting import (
    MOST_THREADS,
    at_once,
    in_thread,
    release,
    uninterrupted,
)
from tests.reliability.connections.counting import counting
from tests.support.alarms import Alarm
from tests.support.certificates import self_signed
from tests.support.programs import run_python
from tests.support.scripted import settles
from tests.support.stopwatch import time_limit


def test_items_are_worked_on_at_the_same_time() -> None:
    together = threading.Barrier(MOST_THREADS)
    at_once(range(MOST_THREADS), lambda _: together.wait(20))
    done: list[int] = []
    at_once(range(1_000), done.append)
    assert sorted(done) == list(range(1_000))
    at_once([], done.append)


def test_the_first_error_is_raised_when_all_have_ended_and_no_more_begin() -> None:
    ended: list[int] = []
    is_raised = threading.Event()

    def work(item: int) -> None:
        if item == 3:
            is_raised.set()
            raise ZeroDivisionError
        assert is_raised.wait(20)
        ended.append(item)

    with pytest.raises(ZeroDivisionError):
        at_once(range(10_000), work)
    assert 2 <= len(ended) <= MOST_THREADS


@pytest.fixture
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)


@pytest.mark.usefixtures("without_threads")
def test_without_threads_the_caller_works() -> None:
    threads: list[str] = []
    at_once(range(3), lambda _: threads.append(threading.current_thread().name))
    assert threads == [threading.current_thread().name] * 3
    with pytest.raises(ZeroDivisionError):
        at_once([0], lambda item: 1 // item)

    async def call() -> int:
        return await in_thread(max, 1, 2)

    assert asyncio.run(call()) == 2
    released: list[str] = []
    release(lambda: released.append("by the caller"))
    assert released == ["by the caller"]
    with pytest.raises(RuntimeError, match="new thread"):
        uninterrupted(lambda: released.append("beside it"))
    assert released == ["by the caller"]


def test_an_interrupt_ends_the_wait_for_a_call_and_its_result_is_abandoned() -> None:
    goes_on = threading.Event()
    abandoned: list[str] = []

    def call() -> str:
        assert goes_on.wait(20)
        return "a result"

    with time_limit(10), pytest.raises(KeyboardInterrupt), Alarm(0.1):
        uninterrupted(call, abandoned.append)
    assert abandoned == []
    goes_on.set()
    assert settles(lambda: abandoned == ["a result"])


def test_a_call_beside_this_thread_has_its_result_its_error_and_its_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    variable.set(3)
    me = threading.get_ident()
    assert uninterrupted(lambda: (variable.get(), threading.get_ident() != me)) == (3, True)
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)


@pytest.mark.parametrize("returns_late", [False, True])
def test_an_interrupt_does_not_wait_for_calls_that_do_not_return(returns_late: bool) -> None:
    goes_on = threading.Event()
    undone: list[int] = []

    def act(item: int) -> None:
        if item or not returns_late:
            assert goes_on.wait(20)

    with time_limit(10), pytest.raises(KeyboardInterrupt), Alarm(0.1):
        at_once(range(2), act, undone.append)
    assert undone == []
    goes_on.set()
    assert settles(lambda: sorted(undone) == ([1] if returns_late else [0, 1]))


@pytest.mark.usefixtures("without_threads")
def test_without_threads_grpcio_is_not_asked(address: Any) -> None:
    with pytest.raises(ConnectionLostError, match="transport 'grpc' needs a thread, but none"):
        connect(address, transport="grpc")


# The main thread's code ends at once; the rest is done after that.
AFTER_MAIN = """
import atexit, sys, threading
import numpy as np
from dm_env_rpc_client import make
from dm_env_rpc_client.adaptors.vector import BatchedEnvironment, RemoteVectorEnv

def opened(address, kind):
    kinds = {{
        "batch": lambda: BatchedEnvironment(address, 3),
        "streams": lambda: BatchedEnvironment(address, 3, num_batches=0),
        "vector": lambda: RemoteVectorEnv(address, 3),
        "vector of streams": lambda: RemoteVectorEnv(address, 3, num_batches=0),
        "sb3": lambda: RemoteSb3VecEnv(address, 3),
        "make": lambda: make(address),
    }}
    envs = kinds[kind]()
    envs.reset()
    return envs

address, *kinds = sys.argv[1:]
if "sb3" in kinds:
    # PyTorch cannot be imported when the main thread's code has ended.
    from dm_env_rpc_client.adaptors.sb3 import RemoteSb3VecEnv
{end}
"""

AT_EXIT = AFTER_MAIN.format(
    end="""
for kind in reversed(kinds):
    atexit.register(print, kind, "closed", flush=True)
    atexit.register(opened(address, kind).close)
"""
)

IN_A_THREAD = AFTER_MAIN.format(
    end="""
def work():
    threading.main_thread().join()
    for kind in kinds:
        opened(address, kind).close()
        print(kind, "closed", flush=True)

threading.Thread(target=work).start()
"""
)


@pytest.fixture(scope="module")
def address() -> Any:
    with serve(counting) as server:
        yield server.address
        assert server.stats().worlds == 0


@pytest.mark.parametrize(
    "kinds", [["batch", "streams", "vector", "vector of streams", "make"], ["sb3"]], ids=str
)
@pytest.mark.parametrize("program", [AT_EXIT, IN_A_THREAD], ids=["atexit", "thread"])
def test_environments_open_and_close_after_main_has_ended(
    address: str, program: str, kinds: list[str]
) -> None:
    if "sb3" in kinds:
        pytest.importorskip("stable_baselines3")
    finished = run_python("-c", program, address, *kinds)
    assert finished.stdout.splitlines() == [f"{kind} closed" for kind in kinds]
    assert finished.stderr == ""


SERVING = """
import asyncio, ssl, sys, threading
import dm_env_rpc_client as d
from dm_env_rpc_client.server import Catch, serve

key, certificate = sys.argv[1:]

async def step(server, **how):
    async with await d.make_async(server.address, **how) as env:
        await env.reset()
        await env.step({"paddle": 1})

def work():
    threading.main_thread().join()
    with serve(Catch) as server:
        asyncio.run(step(server))
    with serve(Catch, credentials=d.Tls(cert=certificate, key=key)) as server:
        trusting = d.Tls(ca=certificate)
        asyncio.run(step(server, credentials=trusting))
        with d.make(server.address, credentials=trusting) as env:
            env.reset()
    print("stepped", flush=True)

threading.Thread(target=work).start()
"""


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2),
    reason="Python 3.12.0 and 3.12.1 start no thread after main has ended",
)
def test_servers_and_event_loops_go_on_after_main_has_ended(tmp_path: Any) -> None:
    key, certificate = self_signed(tmp_path)
    finished = run_python("-c", SERVING, key, certificate)
    assert finished.stdout == "stepped\n"
    assert finished.stderr == ""
