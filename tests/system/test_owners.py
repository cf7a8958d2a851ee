"""A thread that makes all calls of something, for the threads that want them."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
import weakref

import pytest

from dm_env_rpc_client.system.owner_threads import (
    MainOwner,
    OwnerGoneError,
    OwnerThread,
)
from tests.support.collector import no_garbage_collection
from tests.support.scripted import settles


class Thing(Exception):  # noqa: N818  # no error
    """Something that can be forgotten, and raised."""


def fail(error: BaseException) -> None:
    raise error


def fail_anew() -> None:
    raise Thing


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


def test_an_owner_ends_when_nothing_belongs_to_it_any_more() -> None:
    owner = OwnerThread("owner")
    owner.hold()
    owner.hold()
    owner.call(owner.release)
    assert owner.call(pow, 2, 3) == 8
    owner.call(owner.release)
    with pytest.raises(OwnerGoneError):
        owner.call(pow, 2, 3)


def test_calls_that_have_not_begun_can_be_taken_back() -> None:
    owner = OwnerThread("owner")
    began, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        may_end.wait()

    first, second = owner.begin(wait), owner.begin(fail, ValueError("was not taken back"))
    assert began.wait(30)
    assert first.wait_begun(30)
    assert not first.take_back()
    assert not second.wait_begun(0.01)
    assert second.take_back()
    may_end.set()
    first.result()
    assert owner.call(pow, 2, 3) == 8
    assert not second.is_over()
    owner.end()


# A thread that exists already.


def test_a_signal_is_handled_after_the_call_and_a_second_one_at_once() -> None:
    owner = MainOwner("the things")
    seen: list[str] = []

    def raise_signals(count: int) -> None:
        for _ in range(count):
            signal.raise_signal(signal.SIGINT)
        seen.append(f"{count} went on")

    owner.put(raise_signals, 1)
    with pytest.raises(KeyboardInterrupt):
        owner.work_until(lambda: False)
    assert seen == ["1 went on"]
    owner.put(raise_signals, 2)
    with pytest.raises(KeyboardInterrupt):
        owner.work_until(lambda: False)
    assert seen == ["1 went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_was_returned_and_raised_belongs_to_the_caller_alone() -> None:
    owner = OwnerThread("owner")
    with no_garbage_collection():
        seen = [weakref.ref(owner.call(Thing))]
        try:
            owner.call(fail_anew)
        except Thing as error:
            seen.append(weakref.ref(error))
        assert settles(lambda: [each() for each in seen] == [None, None])
    owner.end()
