"""The stream over a socket: reaching servers, waiting, sending while answers back up."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    connect,
    connect_async,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.http2.client import keepalive
from dm_env_rpc_client.transports.http2.client.async_stream import open_http2_stream_async
from tests.support.scripted import descriptor_count, extension, settles
from tests.support.stopwatch import time_limit
from tests.transports import frames
from tests.transports.frames import data, grpc_message
from tests.transports.hosts import open_http2_stream
from tests.transports.raw_server import (
    ask,
    echoed,
    greet,
    next_frame,
    raw_server,
    until_closed,
)

# Sending while answers back up.


MEGABYTE = 1 << 20
REQUEST_BYTES = MEGABYTE + 25
"""A request of a MiB, with what is around it."""


def stubborn(connection: socket.socket) -> None:
    """Answers a MiB with a MiB, and reads no further until the answer is taken."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    greet(connection)
    open_window = struct.pack(">I", 1 << 30)
    connection.sendall(
        frames.frame(frames.WINDOW_UPDATE, open_window)
        + frames.frame(frames.WINDOW_UPDATE, open_window, 0, 1)
    )
    answer = extension(0)
    answer.value = bytes(MEGABYTE)
    response = dm_env_rpc_pb2.EnvironmentResponse(extension=answer).SerializeToString()
    left = 0
    while True:
        part = next_frame(connection)
        if part.kind == frames.DATA:
            left += len(part.payload)
            while left >= MEGABYTE:
                connection.sendall(data(grpc_message(response)))
                left -= REQUEST_BYTES


def large_request() -> Any:
    request = extension(0)
    request.value = bytes(MEGABYTE)
    return request


def test_who_writes_reads_while_the_server_does_not() -> None:
    with raw_server(stubborn) as address, connect(address, request_timeout=20) as connection:
        pending = [connection.start(large_request()) for _ in range(48)]
        assert {len(connection.wait(each).value) for each in pending} == {MEGABYTE}


def test_many_threads_write_while_the_server_does_not_read() -> None:
    sizes: list[int] = []

    def work() -> None:
        pending = [connection.start(large_request()) for _ in range(12)]
        sizes.extend(len(connection.wait(each).value) for each in pending)

    with raw_server(stubborn) as address, connect(address, request_timeout=20) as connection:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sizes == [MEGABYTE] * 48


def test_futures_and_coroutines_write_while_the_server_does_not_read() -> None:
    with raw_server(stubborn) as address, connect(address, request_timeout=20) as connection:
        futures = [connection.submit(large_request()) for _ in range(48)]
        assert {len(future.result().value) for future in futures} == {MEGABYTE}

    async def main(address: str) -> None:
        async with await connect_async(address, request_timeout=20) as connection:
            answers = await asyncio.gather(*(connection.send(large_request()) for _ in range(48)))
            assert {len(answer.value) for answer in answers} == {MEGABYTE}

    with raw_server(stubborn) as address:
        asyncio.run(main(address))


def test_a_window_that_opens_slowly_is_waited_for() -> None:
    received: list[int] = []

    def script(connection: socket.socket) -> None:
        greet(connection)
        left = 300_000
        while left > 0:
            part = next_frame(connection)
            if part.kind == frames.DATA:
                received.append(len(part.payload))
                left -= len(part.payload)
                step = struct.pack(">I", len(part.payload))
                connection.sendall(
                    frames.frame(frames.WINDOW_UPDATE, step)
                    + frames.frame(frames.WINDOW_UPDATE, step, 0, 1)
                )
        connection.sendall(echoed(3))
        until_closed(connection)

    request = extension(3)
    request.value = bytes(300_000)
    with raw_server(script) as address, connect(address, request_timeout=10) as connection:
        assert connection.send(request) == extension(3)
    assert max(received) <= 16_384


# Silence.


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("keepalive", "connection", "async_stream"):
        monkeypatch.setattr(
            f"dm_env_rpc_client.transports.http2.client.{module}.LOOK_SECONDS", 0.02
        )
    monkeypatch.setattr(keepalive, "KEEPALIVE_SECONDS", 0.1)
    # A busy machine takes a while to answer.
    monkeypatch.setattr(keepalive, "KEEPALIVE_TIMEOUT_SECONDS", 0.5)


def silent(connection: socket.socket) -> None:
    greet(connection)
    until_closed(connection)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.usefixtures("short_silence")
def test_a_server_that_does_not_answer_probes_is_given_up(is_async: bool) -> None:
    with (
        raw_server(silent) as address,
        time_limit(3),
        pytest.raises(ConnectionLostError, match="did not answer a probe"),
    ):
        ask(address, is_async, 1)


def acknowledging(connection: socket.socket, probes: int) -> None:
    """Acknowledges so many probes in the middle of a step."""
    acknowledged = 0
    while acknowledged < probes:
        part = next_frame(connection)
        assert part.kind != frames.PING, "gRPC servers end connections for that"
        if part.kind == frames.SETTINGS and not part.flags and not part.payload:
            connection.sendall(frames.frame(frames.SETTINGS, flags=frames.ACK))
            acknowledged += 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.usefixtures("short_silence")
def test_a_server_that_takes_long_is_probed_all_the_time(is_async: bool) -> None:
    def script(connection: socket.socket) -> None:
        greet(connection)
        acknowledging(connection, 5)
        connection.sendall(echoed(5))
        until_closed(connection)

    with raw_server(script) as address:
        assert ask(address, is_async, 5) == extension(5)


@pytest.mark.row(38)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.usefixtures("short_silence")
def test_row_38_a_server_that_freezes_late_in_a_step_is_noticed(is_async: bool) -> None:
    def script(connection: socket.socket) -> None:
        greet(connection)
        acknowledging(connection, 5)
        until_closed(connection)

    with (
        raw_server(script) as address,
        time_limit(10),
        pytest.raises(ConnectionLostError, match="did not answer a probe"),
    ):
        ask(address, is_async, 5)


# Ends.


def test_aborting_wakes_a_thread_that_reads() -> None:
    with raw_server(silent) as address:
        descriptors = descriptor_count()
        stream = open_http2_stream(address)
        outcome: list[BaseException] = []

        def read() -> None:
            try:
                stream.read(None)
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.1)  # The thread waits for the socket by then.
        stream.abort()
        thread.join(2)
        assert not thread.is_alive()
        assert len(outcome) == 1
        assert stream.fileno() == -1
        stream.write(b"nobody takes this")
        stream.abort()
        assert settles(lambda: descriptor_count() <= descriptors)


def test_answers_are_taken_from_the_loop_only_so_far() -> None:
    """What nobody awaits stays at the server once there is enough of it here."""
    sent: list[int] = []

    def script(connection: socket.socket) -> None:
        greet(connection)
        message = data(grpc_message(bytes(MEGABYTE)))
        for number in range(300):
            connection.sendall(message)
            sent.append(number)
        until_closed(connection)

    async def main(address: str) -> None:
        stream = await open_http2_stream_async(Endpoint(address), 5)
        before = -1
        while len(sent) <= 60 or len(sent) != before:
            before = len(sent)
            await asyncio.sleep(0.3)  # Until no more comes.
        assert 60 < len(sent) < 120
        for _ in range(60):
            assert len(await stream.read()) == MEGABYTE
        await stream.close(0.0)

    with raw_server(script) as address:
        asyncio.run(main(address))
