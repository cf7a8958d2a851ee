"""Which thread answers, and requests on the only stream of a socket."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dm_env_rpc_client.transports.http2.server import answering, connection, leading
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection
from tests.support.scripted import settles
from tests.transports import frames
from tests.transports.frames import FORMS, data, grpc_message, window_update
from tests.transports.hosts import Host
from tests.transports.raw_client import RawClient, request, requests


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The requests that were received alone."""
    received: list[bytes] = []
    receive = ServerConnection.receive_request

    def receive_request(own: ServerConnection, served: Any) -> bytes | None:
        message = receive(own, served)
        if message is not None:
            received.append(message)
        return message

    monkeypatch.setattr(ServerConnection, "receive_request", receive_request)
    return received


@pytest.mark.parametrize("form", FORMS)
def test_requests_in_every_form_are_answered_in_order(
    client: RawClient, alone: list[bytes], form: str
) -> None:
    client.send(request(1))
    expected = []
    for number in range(60):
        message = b"echo:%d" % (number * 37)
        for part in FORMS[form if number % 2 else "usual"](grpc_message(message)):
            client.send(part)
        expected.append(message[5:])
        assert client.read_until(lambda: client.answers(1) == expected)  # at once
    assert len(alone) >= 25


def test_an_answer_waits_for_the_window_of_the_client(host: Host) -> None:
    """The windows are open for a part of an answer."""
    with RawClient(host.address, window=1_000) as client:
        client.send(request(1))
        left = 1_000
        for number in range(40):
            client.send(requests(1, b"large:%d" % (100 + number)))
            left -= 105 + number
            if left < 0:
                assert client.ping()
                assert len(client.answers(1)) == number
                client.send(window_update(1, 1_000))
                left += 1_000
            assert client.read_until(lambda: len(client.answers(1)) == number + 1)  # noqa: B023
        assert [len(answer) for answer in client.answers(1)] == list(range(100, 140))


def test_a_part_of_a_message_is_no_request(client: RawClient) -> None:
    """The second frame of a request looks like the one before, to the last byte."""
    client.send(request(1))
    for number in range(3):
        client.send(requests(1, b"echo:ABCD"))
        assert client.read_until(lambda: len(client.answers(1)) == number + 1)  # noqa: B023
    inner = grpc_message(b"echo:EVIL")
    whole = grpc_message(b"echo:1234" + inner)
    client.send(data(whole[:14]))
    assert client.ping()
    client.send(data(whole[14:]))
    assert client.read_until(lambda: len(client.answers(1)) == 4)
    assert client.answers(1)[3] == b"1234" + inner


def test_a_request_behind_the_end_is_refused(host: Host, client: RawClient) -> None:
    client.send(request(1))
    for number in range(3):
        client.send(requests(1, b"echo:x"))
        assert client.read_until(lambda: len(client.answers(1)) == number + 1)  # noqa: B023
    with host.blocking() as go_on:
        client.send(requests(1, b"block:"))
        client.send(data(b"", frames.END_STREAM))
        assert client.ping()
        client.send(requests(1, b"echo:x"))
        assert client.ping()
        go_on.set()
    assert client.read_until(lambda: client.status(1) == "0" or client.reset_code(1) is not None)
    assert client.answers(1)[3:] in ([], [b""])


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
