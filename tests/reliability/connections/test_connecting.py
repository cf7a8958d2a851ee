"""Rows 5, 13 and 14: connecting to what is not there, and what is left of connections."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from dm_env_rpc_client import ConnectionLostError, DeadlineExceededError
from tests.reliability.echoing import Echoing
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.both_transports import EVERY
from tests.support.scripted import answering_socket, descriptor_count, settles, thread_count
from tests.support.stopwatch import time_limit
from tests.transports.raw_server import ask, both_ways

TRANSPORTS = EVERY


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    yield "localhost:1"


@contextlib.contextmanager
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def hanging_up() -> contextlib.AbstractContextManager[str]:
    return answering_socket(lambda connected: connected.recv(1 << 16))


@pytest.mark.row(5)
@both_ways
@pytest.mark.parametrize(
    ("there", "error", "said"),
    [
        (nobody, ConnectionLostError, "{} within 0.5 s.*refused.*is running"),
        (silent, (DeadlineExceededError, ConnectionLostError), "{}"),
    ],
)
def test_what_is_there_is_named_with_the_cause(
    is_async: bool, there: type[contextlib.AbstractContextManager[str]], error: type, said: str
) -> None:
    with there() as address, time_limit(1.5), pytest.raises(error, match=said.format(address)):
        ask(address, is_async, timeout=0.5)


def left(threads: int, descriptors: int) -> dict[str, float]:
    """What there is more than before."""
    return {
        "threads_more": float(max(0, thread_count() - threads)),
        "descriptors_more": float(max(0, descriptor_count() - descriptors)),
    }


@pytest.mark.row(13)
@both_ways
@counts(50, 2_000)
def test_opens_and_closes_leave_nothing_behind(
    echo_server: Echoing, is_async: bool, count: int, seen: Seen
) -> None:
    ask(echo_server.address, is_async, 1)
    assert settles(lambda: echo_server.open_streams == 0)
    before = thread_count(), descriptor_count()
    for number in range(count):
        ask(echo_server.address, is_async, number)
    assert settles(lambda: echo_server.open_streams == 0)
    assert settles(lambda: left(*before)["descriptors_more"] == 0)
    assert settles(lambda: left(*before)["threads_more"] <= 2)
    seen(connections=count, **left(*before))


@pytest.mark.row(14)
@counts(50, 500)
@pytest.mark.parametrize("there", [nobody, hanging_up])
def test_failed_connects_leave_nothing_behind(
    there: type[contextlib.AbstractContextManager[str]], count: int, seen: Seen
) -> None:
    with there() as address:

        def fail() -> None:
            with pytest.raises((ConnectionLostError, DeadlineExceededError)):
                ask(address, False, timeout=0.02)

        fail()
        time.sleep(0.5)  # Threads that grpcio starts late count as before.
        before = thread_count(), descriptor_count()
        for _ in range(count):
            fail()
        # grpcio's pool may have started a thread late; what is left counts for each attempt.
        assert settles(lambda: left(*before)["threads_more"] <= count / 25)
        assert settles(lambda: left(*before)["descriptors_more"] == 0)
        seen(attempts=count, **left(*before))
