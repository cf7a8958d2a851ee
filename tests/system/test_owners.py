"""A thread that makes all calls of something, for the threads that want them."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
import weakref

import pytest

from dm_env_rpc_client.system.owners import OwnerThread
from tests.reliability.processes.forking import Child
from tests.support.scripted import settles


class Thing(Exception):  # noqa: N818  # no error
    """Something that can be forgotten, and raised."""


def fail(error: BaseException) -> None:
    raise error


def fail_anew() -> None:
    raise Thing


def test_one_thread_makes_the_calls_of_all() -> None:
    owner = OwnerThread("owner")
    assert "owner" not in [thread.name for thread in threading.enumerate()]
    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        found = set(executor.map(lambda _: owner.call(threading.get_ident), range(100)))
    (one,) = found
    assert one != threading.get_ident()
    assert one in [thread.ident for thread in threading.enumerate() if thread.name == "owner"]
    owner.end()


def test_its_own_calls_are_made_at_once() -> None:
    owner = OwnerThread("owner")
    assert owner.call(lambda: owner.call(pow, 2, 5)) == 32
    owner.end()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_what_a_call_raises_is_raised_to_its_caller(error: BaseException) -> None:
    owner = OwnerThread("owner")
    with pytest.raises(type(error)) as caught:
        owner.call(fail, error)
    assert caught.value is error
    assert owner.call(pow, 2, 3) == 8
    owner.end()


def test_what_was_returned_and_raised_belongs_to_the_caller_alone() -> None:
    owner = OwnerThread("owner")
    gc.disable()
    try:
        seen = [weakref.ref(owner.call(Thing))]
        try:
            owner.call(fail_anew)
        except Thing as error:
            seen.append(weakref.ref(error))
        assert settles(lambda: [each() for each in seen] == [None, None])
    finally:
        gc.enable()
    owner.end()


def test_it_ends_after_the_calls_that_wait_and_takes_no_more() -> None:
    owner = OwnerThread("owner")
    began, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        may_end.wait()

    with concurrent.futures.ThreadPoolExecutor() as executor:
        first = executor.submit(owner.call, wait)
        began.wait()
        owner.end()
        owner.end()
        with pytest.raises(RuntimeError, match="the thread 'owner' has ended"):
            owner.call(pow, 2, 3)
        may_end.set()
        first.result()
    assert settles(lambda: "owner" not in [thread.name for thread in threading.enumerate()])
    with pytest.raises(RuntimeError, match="has ended"):
        owner.call(pow, 2, 3)


def test_a_forked_child_has_none() -> None:
    owner = OwnerThread("owner")
    owner.call(pow, 2, 3)

    def call() -> str:
        try:
            return str(owner.call(pow, 2, 3))
        except RuntimeError as error:
            return str(error)

    gc.collect()  # Of earlier tests: a child that frees objects of grpcio waits forever.
    assert Child(call).result() == "the thread 'owner' has ended"
    assert owner.call(pow, 2, 3) == 8
    owner.end()
