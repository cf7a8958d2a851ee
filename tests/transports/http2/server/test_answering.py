"""Which thread answers a stream that belongs to nobody."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.server import answering, connection, leading
from tests.support.scripted import settles
from tests.transports.hosts import Host
from tests.transports.raw_client import RawClient, request, requests


def test_a_slow_stream_has_a_thread_until_it_is_quick_again(
    host: Host, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Larger than in use: on a busy machine no answer is quick for long.
    monkeypatch.setattr(connection, "_HICCUP_SECONDS", 0.2)
    monkeypatch.setattr(answering, "_SLOW_SECONDS", 0.05)
    monkeypatch.setattr(answering, "_QUICK_SECONDS", 0.04)
    monkeypatch.setattr(leading, "TICK_SECONDS", 1.0)  # The watcher is not to do it.

    def who(milliseconds: bytes) -> bytes:
        time.sleep(int(milliseconds) / 1_000)  # It takes time to answer.
        return threading.current_thread().name.encode()

    host.scripts["who"] = who
    client.send(request(1))
    count = 0

    def has(ending: bytes, milliseconds: int) -> bool:
        nonlocal count
        count += 1
        client.send(requests(1, b"who:%d" % milliseconds))
        assert client.read_until(lambda: len(client.answers(1)) == count)
        return client.answers(1)[-1].endswith(ending)

    assert has(b" leads", 0)
    assert has(b" leads", 80)  # One alone changes nothing.
    assert settles(lambda: has(b" serves a stream", 80))
    assert settles(lambda: has(b" leads", 0))


def test_a_request_that_arrives_while_its_thread_gives_up_is_answered(
    host: Host, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_request = answering.Answering._next_request
    gives_up, was_overtaken = threading.Event(), threading.Event()

    def slow_to_return(self: Any, served: Any, may_linger: bool) -> Any:
        found = next_request(self, served, may_linger)
        if not served.has_thread and not gives_up.is_set():
            gives_up.set()
            if settles(lambda: served.has_thread):
                was_overtaken.set()
        return found

    monkeypatch.setattr(answering.Answering, "_next_request", slow_to_return)
    monkeypatch.setattr(answering, "_LINGER_SECONDS", 0.01)
    client.send(request(1))
    assert client.read_until(lambda: bool(host.opened))
    host.opened[0].may_wait = True  # So that the stream has a thread.
    client.send(requests(1, b"echo:first"))
    assert client.read_until(lambda: client.answers(1) == [b"first"])
    assert gives_up.wait(10.0)
    with host.blocking() as go_on:
        client.send(requests(1, b"block:"))
        assert was_overtaken.wait(10.0)
        go_on.set()
        assert client.read_until(lambda: client.answers(1) == [b"first", b"True"])
    client.send(requests(1, b"echo:third"))
    assert client.read_until(lambda: client.answers(1)[2:] == [b"third"])
    assert len(client.found(frames.HEADERS, 1)) == 1, "the stream was ended"
