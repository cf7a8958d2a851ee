"""Rows 5, 13 and 14: connecting to what is not there, and what is left of connections."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import grpc
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    connect,
    connect_async,
)
from dm_env_rpc_client.testing import ScriptedServer, echo
from tests.reliability.echoing import Echoing
from tests.reliability.hostile.raw_peers import ask
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.both_transports import EVERY
from tests.support.certificates import self_signed
from tests.support.scripted import (
    descriptor_count,
    extension,
    settles,
    settles_async,
    thread_count,
)
from tests.support.stopwatch import patience, time_limit

TRANSPORTS = EVERY


@pytest.mark.row(5)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_dead_port_is_named_with_the_cause(is_async: bool) -> None:
    with (
        time_limit(1.5),
        pytest.raises(ConnectionLostError, match=r"localhost:1 within 0.5 s.*refused.*is running"),
    ):
        ask("localhost:1", is_async, timeout=0.5)


@pytest.mark.row(5)
def test_a_port_that_accepts_and_says_nothing_is_a_deadline() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            time_limit(1.5),
            pytest.raises((DeadlineExceededError, ConnectionLostError), match=address),
        ):
            connect(address, timeout=0.5)


@pytest.mark.row(5)
def test_tls_credentials_against_plaintext_name_the_handshake(
    echo_server: Echoing,
) -> None:
    timeout = patience(1.5)
    with (
        time_limit(timeout + 1.0),
        pytest.raises(ConnectionLostError, match=f"{echo_server.address}.*credentials"),
    ):
        connect(echo_server.address, timeout=timeout, credentials=grpc.ssl_channel_credentials())


@pytest.mark.row(5)
def test_an_untrusted_certificate_is_the_cause(tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    timeout = patience(1.5)
    with (
        ScriptedServer(echo, credentials) as server,
        time_limit(timeout + 1.0),
        pytest.raises(ConnectionLostError, match=r"(?i)certificate|handshake"),
    ):
        connect(server.address, timeout=timeout, credentials=grpc.ssl_channel_credentials())


@pytest.mark.row(13)
@counts(50, 2_000)
async def test_opens_and_closes_of_coroutines_leave_nothing_behind(
    echo_server: Echoing, count: int, seen: Seen
) -> None:
    async def open_and_close() -> None:
        async with await connect_async(echo_server.address) as connection:
            await connection.send(extension(1))

    await open_and_close()
    threads, descriptors = thread_count(), descriptor_count()
    for _ in range(count):
        await open_and_close()
    await settles_async(lambda: echo_server.open_streams == 0 and descriptor_count() <= descriptors)
    seen(
        connections=count,
        threads_more=float(max(0, thread_count() - threads)),
        descriptors_more=float(max(0, descriptor_count() - descriptors)),
    )
    assert echo_server.open_streams == 0
    assert thread_count() <= threads + 2
    assert len(asyncio.all_tasks()) <= 2
    assert descriptor_count() <= descriptors


@pytest.mark.row(14)
@counts(50, 500)
def test_failed_connects_leave_nothing_behind(count: int, seen: Seen) -> None:
    def fail() -> None:
        with pytest.raises(ConnectionLostError):
            connect("localhost:1", timeout=0.02)

    fail()
    time.sleep(0.5)  # Threads that grpcio starts late count as before.
    threads, descriptors = thread_count(), descriptor_count()
    for _ in range(count):
        fail()
    # grpcio's pool may have started a thread late; what is left behind counts for each attempt.
    most = threads + count / 25
    settles(lambda: thread_count() <= most and descriptor_count() <= descriptors)
    more_threads = float(max(0, thread_count() - threads))
    more_descriptors = float(max(0, descriptor_count() - descriptors))
    seen(attempts=count, threads_more=more_threads, descriptors_more=more_descriptors)
    assert more_descriptors == 0
    assert threads + more_threads <= most
