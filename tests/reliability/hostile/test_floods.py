"""Row 31: a server that floods. Every wait ends in time, and memory stays bounded."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable

import hpack
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    ProtocolError,
    connect,
    dm_env_rpc_pb2,
)
from tests.reliability.recording import Seen
from tests.support.scripted import answering_socket
from tests.support.stopwatch import Stopwatch
from tests.transports import frames
from tests.transports.frames import (
    ACK,
    CONTINUATION,
    DATA,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from tests.transports.raw_server import ask

TRANSPORTS = ["http2"]

pytestmark = pytest.mark.row(31)

LATE_SECONDS = 0.2
"""How long after its deadline a wait may end."""

INTERIM = frame(HEADERS, hpack.Encoder().encode([(":status", "103")]), frames.END_HEADERS, 1)

# What is sent again and again, and whether the response's headers come first.
FLOODS: dict[str, tuple[bytes, bool]] = {
    "PING": (frame(PING, bytes(8)), True),
    "PING answers": (frame(PING, bytes(8), ACK), True),
    "SETTINGS": (frames.settings(window=100_000), True),
    "SETTINGS answers": (frame(SETTINGS, flags=ACK), True),
    "WINDOW_UPDATE": (frame(WINDOW_UPDATE, struct.pack(">I", 1)), True),
    "WINDOW_UPDATE of the stream": (frame(WINDOW_UPDATE, struct.pack(">I", 1), 0, 1), True),
    "PRIORITY": (frame(PRIORITY, bytes(5), 0, 1), True),
    "unknown frames": (frame(0x77, bytes(8)), True),
    "large unknown frames": (frame(0x77, bytes(100_000)), True),
    "empty DATA": (frame(DATA, b"", 0, 1), True),
    "padded DATA": (frame(DATA, b"\xff" + bytes(255), PADDED, 1), True),
    "interim responses": (INTERIM, False),
    "empty CONTINUATION": (frame(CONTINUATION, b"", 0, 1), False),
}


CREATE = dm_env_rpc_pb2.CreateWorldRequest()


def read_for_ever(connected: socket.socket) -> None:
    """Reads and forgets what the client sends, in a thread."""

    def read() -> None:
        with contextlib.suppress(OSError):
            while connected.recv(1 << 16):
                pass

    threading.Thread(target=read, daemon=True).start()


def flood(name: str, reads: bool = True) -> Callable[[socket.socket], None]:
    once, with_headers = FLOODS[name]

    def script(connected: socket.socket) -> None:
        if reads:
            read_for_ever(connected)
        start = frames.settings() + frame(SETTINGS, flags=ACK)
        if with_headers:
            start += frames.headers(*frames.RESPONSE)
        elif once.startswith(frame(CONTINUATION, b"", 0, 1)):
            start += frame(HEADERS, b"", 0, 1)
        connected.sendall(start)
        blob = once * (1 + (1 << 16) // len(once))
        while True:
            connected.sendall(blob)

    return script


def is_protocol_error(error: BaseException | None) -> bool:
    """Whether an error is one, or is the consequence of one for a request that was pending."""
    return isinstance(error, ProtocolError) or isinstance(error and error.__cause__, ProtocolError)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", FLOODS)
def test_row_31_each_wait_ends_by_an_error_that_names_the_flood(
    name: str, is_async: bool, seen: Seen
) -> None:
    with answering_socket(flood(name)) as address:
        started = Stopwatch()
        with pytest.raises((ProtocolError, ConnectionLostError), match="HTTP/2: it sent") as caught:
            ask(address, is_async, CREATE, transport="http2", wait=60.0)
        assert started.within(50)
        seen(floods=1, ended_after_s=started.seconds)
        assert is_protocol_error(caught.value)
        connection = connect(address, transport="http2")
        closing = Stopwatch()
        connection.close()
        assert closing.within(3.0)


@pytest.mark.parametrize("name", ["PING", "SETTINGS"])
@pytest.mark.parametrize("is_async", [False, True])
def test_row_31_acknowledgements_do_not_pile_up(name: str, is_async: bool, seen: Seen) -> None:
    """The server never reads, so every acknowledgement waits in this process."""
    with answering_socket(flood(name, reads=False)) as address:
        tracemalloc.start()
        try:
            with pytest.raises((ProtocolError, ConnectionLostError)) as caught:
                ask(address, is_async, CREATE, transport="http2", wait=60.0)
            assert is_protocol_error(caught.value)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    seen(memory_mib=peak / (1 << 20))
    assert peak < 4 << 20


@pytest.mark.parametrize("is_async", [False, True])
def test_row_31_a_greeting_that_trickles_ends_connect_in_time(is_async: bool) -> None:
    stop = threading.Event()

    def script(connected: socket.socket) -> None:
        for byte in frames.settings(window=1, frame=20_000, streams=3, table=1) * 100:
            connected.sendall(bytes([byte]))
            if stop.wait(0.1):
                return

    with answering_socket(script) as address:
        started = Stopwatch()
        with pytest.raises((DeadlineExceededError, ConnectionLostError)):
            ask(address, is_async, timeout=1.0, transport="http2")
        assert started.within(1.5 + LATE_SECONDS)
        stop.set()
