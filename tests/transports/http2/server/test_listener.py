"""The threads of the HTTP/2 listener: who answers, who takes over, and that nothing gets lost."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from dm_env_rpc_client.transports.http2.server import answering, leading
from dm_env_rpc_client.transports.server_streams import StreamStatusError
from tests.support.programs import open_links
from tests.support.scripted import settles
from tests.transports.frames import DATA, END_STREAM, HEADERS, frame, reset, window_update
from tests.transports.hosts import WAIT_SECONDS, Host, is_served
from tests.transports.raw_client import RawClient, request, requests


@pytest.mark.parametrize("milliseconds", [0, 50])
def test_after_a_status_nothing_of_the_stream_is_answered_and_it_is_closed(
    host: Host, client: RawClient, milliseconds: int
) -> None:
    sleep = b"sleep:%d," % milliseconds
    client.send(request(1) + requests(1, b"echo:a", sleep, b"fail:", b"echo:b", b"echo:c"))
    assert client.read_until(lambda: client.status(1) == "10")
    assert client.answers(1) == [b"a", b""]
    # The place is free, though the client has not ended its half.
    assert host.all_closed_once()
    assert client.ping()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError, GeneratorExit])
@pytest.mark.parametrize("place", ["answer", "open", "close", "abandon"])
def test_whatever_a_stream_raises_it_ends_that_stream_alone(
    host: Host,
    client: RawClient,
    place: str,
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise error

    host.error = error()
    setattr(host, f"on_{place}", fail)
    message = b"fail:" if place == "answer" else b"echo:x"
    client.send(request(1) + request(3) + requests(1, message, end=place == "close"))
    if place == "abandon":
        assert client.read_until(lambda: bool(client.answers(1)))
        client.send(reset(1))
        assert settles(lambda: host.opened[0].events == ["abandon", "close"])
    else:
        status = "0" if place == "close" else "13"
        assert client.read_until(lambda: client.status(1) == status)
        assert place == "close" or error.__name__ in caplog.text
    setattr(host, f"on_{place}", lambda: None)
    if place != "open":
        client.send(requests(3, b"echo:y"))
        assert client.read_until(lambda: client.answers(3) == [b"y"])
    assert is_served(host)


@pytest.mark.parametrize("details", ["\udc80", "é" * 5_000, "x" * 100_000, "a\nb\0c"])
@pytest.mark.parametrize("code", ["INTERNAL", "NO_SUCH_CODE"])
def test_any_status_reaches_the_client(
    host: Host, client: RawClient, details: str, code: str
) -> None:
    host.error = StreamStatusError(code, details)
    client.send(request(1) + requests(1, b"fail:"))
    assert client.read_until(lambda: client.status(1) == {"INTERNAL": "13"}.get(code, "2"))
    assert len(client.found(HEADERS, 1)[0].payload) < 5_000
    assert is_served(host)


def test_a_slow_close_delays_nobody_also_after_a_rest(host: Host, client: RawClient) -> None:
    go_on = threading.Event()
    client.begin()
    # The watcher rests after half a second without answers.
    assert settles(lambda: host.listener._leader.is_resting)
    host.on_close = lambda: assert_(go_on.wait(WAIT_SECONDS))
    client.send(frame(DATA, b"", END_STREAM, 1))
    try:
        assert settles(lambda: "close" in host.opened[0].events)
        assert is_served(host)
    finally:
        go_on.set()
        host.on_close = lambda: None


def assert_(condition: bool) -> None:
    assert condition


def test_a_window_that_opens_while_the_thread_stops_is_not_missed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client opens its window between the thread's look at it and the thread's end."""
    has_looked, is_open = threading.Event(), threading.Event()

    class Slow(set[Any]):
        def add(self, served: Any) -> None:
            has_looked.set()
            is_open.wait(0.5)
            super().add(served)

    with RawClient(host.address, window=20) as client:
        client.send(request(1) + requests(1, b"sleep:20,a"))
        assert client.read_until(lambda: client.answers(1) == [b"a"])
        for connection in host.listener._clients.connections.values():
            connection.stalled = Slow()
        # Of the next two answers the first does not fit into the window.
        client.send(requests(1, b"sleep:20," + b"b" * 30, b"sleep:20,c"))
        assert has_looked.wait(WAIT_SECONDS)
        client.send(window_update(1, 1_000))
        time.sleep(0.05)  # It arrives while the thread is about to stop.
        is_open.set()
        assert client.read_until(lambda: client.answers(1) == [b"a", b"b" * 30, b"c"], 2.0)


def test_streams_change_between_threads_without_losing_or_reordering_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers of all durations, so that streams change hands often."""
    monkeypatch.setattr(answering, "_LINGER_SECONDS", 0.001)
    monkeypatch.setattr(leading, "TICK_SECONDS", 0.001)
    host = Host()
    durations = [b"0", b"0", b"0", b"1", b"0", b"0", b"3", b"0"]
    with RawClient(host.address) as client:
        streams = range(1, 13, 2)
        client.send(b"".join(map(request, streams)))
        expected: list[bytes] = []
        for turn in range(60):
            for stream in streams:
                contents = b"%s,%d" % (durations[(turn + stream) % 8], turn)
                client.send(requests(stream, b"sleep:" + contents))
            expected.append(b"%d" % turn)
            if turn % 7 == 0:
                for stream in streams:
                    assert client.read_until(
                        lambda: len(client.answers(stream)) == turn + 1  # noqa: B023  # at once
                    ), stream
        for stream in streams:
            client.send(frame(DATA, b"", END_STREAM, stream))
        for stream in streams:
            assert client.read_until(lambda: client.status(stream) == "0")  # noqa: B023  # at once
            assert client.answers(stream) == expected
    assert host.all_closed_once()
    host.listener.stop(0.0)


def test_stop_in_the_middle_of_a_slow_close_ends_all_the_same(host: Host) -> None:
    go_on = threading.Event()
    host.on_close = lambda: assert_(go_on.wait(WAIT_SECONDS))
    with RawClient(host.address) as one, RawClient(host.address) as other:
        for client in (one, other):
            client.begin()
        stopping = threading.Thread(target=host.listener.stop, args=(0.0,))
        stopping.start()
        # Both are closed at the same time: each has a thread by then.
        assert settles(lambda: all(one.events == ["abandon", "close"] for one in host.opened))
        go_on.set()
        stopping.join(WAIT_SECONDS)
        assert host.listener.wait(WAIT_SECONDS)
        assert one.read_to_the_end()
        assert other.read_to_the_end()
    assert settles(lambda: not [one for one in threading.enumerate() if host.address in one.name])


def test_a_forked_child_keeps_no_connection_open(host: Host, client: RawClient) -> None:
    client.begin()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        os.close(reader)
        # The child has changed nothing for the parent.
        client.send(requests(1, b"echo:y"))
        assert client.read_until(lambda: client.answers(1) == [b"x", b"y"])
        own = {os.readlink(f"/proc/self/fd/{one}") for one in host.listener._clients.connections}
        assert settles(lambda: own.isdisjoint(open_links(child)))
        host.listener.stop(0.0)
        assert client.read_to_the_end()
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_stop_waits_until_the_answers_are_read(host: Host) -> None:
    with RawClient(host.address, window=1 << 30) as client:
        client.send(window_update(0, 1 << 30) + request(1))
        client.send(requests(1, b"large:30000000", end=True))
        assert settles(lambda: bool(host.opened))
        assert host.all_closed_once()
        stopping = threading.Thread(target=host.listener.stop, args=(WAIT_SECONDS,))
        stopping.start()
        assert client.read_until(lambda: client.status(1) == "0")
        stopping.join(WAIT_SECONDS)
        assert len(client.answers(1)[0]) == 30_000_000
        assert client.goaway_code() == 0
