"""Requests that are sent, and whose answers are received, while nothing else is in flight.

What is unusual at any point is left to the general way, and is never noticed by who asks.
"""

from __future__ import annotations

import itertools
import signal
import socket
import threading
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    ProtocolError,
    connect,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.protocol.pipeline import Pipeline
from dm_env_rpc_client.transports.http2.client import connection as http2_connection
from tests.support.scripted import extension, settles
from tests.support.stopwatch import time_limit
from tests.transports import frames
from tests.transports.frames import FORMS, data, grpc_message
from tests.transports.raw_server import (
    Script,
    echoed,
    greet,
    next_frame,
    raw_server,
    until_closed,
)


class Counted:
    """How many exchanges have begun, and how many of them have returned an answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.begun = self.answered = 0
        begin, exchange = Pipeline.begin, http2_connection.ClientConnection.exchange

        def counted_begin(pipeline: Pipeline, pending: Any) -> bool:
            has_begun = begin(pipeline, pending)
            self.begun += has_begun
            return has_begun

        def counted_exchange(own: Any, *arguments: Any) -> Any:
            answer = exchange(own, *arguments)
            self.answered += answer is not None
            return answer

        monkeypatch.setattr(Pipeline, "begin", counted_begin)
        monkeypatch.setattr(http2_connection.ClientConnection, "exchange", counted_exchange)


def next_request(connection: socket.socket) -> int:
    """Waits for a request; returns the number that it has."""
    contents = b""
    while True:
        part = next_frame(connection)
        if part.kind != frames.DATA:
            continue
        contents += part.payload
        if len(contents) >= 5 and len(contents) == 5 + int.from_bytes(contents[1:5], "big"):
            request = dm_env_rpc_pb2.EnvironmentRequest.FromString(contents[5:])
            return int.from_bytes(request.extension.value[:4], "little")


def numbered(number: int) -> Any:
    request = extension(number)
    request.value = number.to_bytes(4, "little")
    return request


def answer_to(number: int) -> bytes:
    response = dm_env_rpc_pb2.EnvironmentResponse(extension=numbered(number))
    return grpc_message(response.SerializeToString())


@pytest.mark.parametrize("form", FORMS)
def test_answers_in_every_form_reach_their_requests(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form comes between answers as usual, whose size changes, too."""

    def script(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(connection)
        for form_of in itertools.cycle(("usual", form)):
            for part in FORMS[form_of](answer_to(next_request(connection))):
                connection.sendall(part)

    with raw_server(script) as address, connect(address, request_timeout=20) as connection:
        counts = Counted(monkeypatch)
        for number in (*range(100), *range(1 << 20, (1 << 20) + 100)):
            assert connection.send(numbered(number)).value == numbered(number).value
        assert counts.begun >= 100  # A PING that is there makes a request go the general way.
        assert counts.answered >= 90


def answers(count: int) -> Script:
    """The script of a server that answers so many requests."""

    def script(connection: socket.socket) -> None:
        greet(connection)
        for number in range(count):
            assert next_request(connection) == number
            connection.sendall(data(answer_to(number)))
        until_closed(connection)

    return script


def test_a_message_that_does_not_change_is_known_by_its_head() -> None:
    """What has the size of earlier answers, and says that it is longer, is not taken for one."""

    def script(connection: socket.socket) -> None:
        greet(connection)
        for number in range(3):
            assert next_request(connection) == number
            connection.sendall(echoed(7))
        next_request(connection)
        wrong = bytearray(echoed(7))
        wrong[13] += 1  # The message is longer than its frame.
        connection.sendall(bytes(wrong))
        connection.sendall(data(b"x"))
        until_closed(connection)

    with raw_server(script) as address, connect(address, request_timeout=20) as connection:
        for number in range(3):
            assert connection.send(numbered(number)) == extension(7)
        with pytest.raises((ProtocolError, ConnectionLostError)):
            connection.send(numbered(3))


def test_a_part_of_an_answer_is_no_answer() -> None:
    """The second frame of an answer looks like the one before, to the last byte."""
    usual = answer_to(5)

    def script(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(connection)
        for _ in range(3):
            next_request(connection)
            connection.sendall(data(usual))
        next_request(connection)
        request = numbered(6)
        request.value += usual
        response = dm_env_rpc_pb2.EnvironmentResponse(extension=request)
        whole = grpc_message(response.SerializeToString())
        assert whole.endswith(usual)
        connection.sendall(data(whole[: -len(usual)]))
        go_on.wait(30)
        connection.sendall(data(usual))
        until_closed(connection)

    go_on = threading.Event()
    with raw_server(script) as address, connect(address, request_timeout=20) as connection:
        for number in range(3):
            assert connection.send(numbered(number)).value == numbered(5).value
        pending = connection.start(numbered(3))
        stream: Any = connection._stream

        def has_begun() -> bool:
            is_over = connection.poll(pending)
            return not is_over and bool(stream._call.assembler.is_in_message)

        assert settles(has_begun)
        go_on.set()
        assert connection.wait(pending).value == numbered(6).value + usual


def test_a_deadline_holds_beside_a_timer_that_interrupts_each_wait() -> None:
    """As a profiler has one."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with raw_server(answers(2)) as address, connect(address, request_timeout=2) as connection:
            for number in range(2):
                connection.send(numbered(number))
            signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
            with time_limit(10), pytest.raises(DeadlineExceededError):
                connection.send(numbered(2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_at_the_end_leaves_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the socket would stay open, and the other streams of a shared one would wait."""

    class HandlerError(Exception):
        """What the handler of a signal raises, as after any call."""

    class Interrupted(set[int]):
        is_due = False

        def discard(self, element: object, /) -> None:
            super().discard(element)
            if self.is_due:
                raise HandlerError

    working = Interrupted()
    monkeypatch.setattr(http2_connection, "working", working)
    with raw_server(answers(3)) as address, connect(address, request_timeout=20) as connection:
        for number in range(2):
            connection.send(numbered(number))
        stream: Any = connection._stream
        working.is_due = True
        with pytest.raises(HandlerError):
            connection.send(numbered(2))
        working.is_due = False
        assert not stream._connection._receiving.locked()
        assert not connection.is_usable
        connection.close()
        assert stream._connection._socket.fileno() == -1
