"""Which thread answers a stream that belongs to nobody."""

from __future__ import annotations

import threading
import time

import pytest

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
