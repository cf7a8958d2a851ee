"""Row 42: hostile HTTP/2 clients, with an honest one beside them."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import cast

import hpack
import pytest

from tests.reliability.hostile.attacking import (
    SCALES,
    SLACK,
    Attack,
    Comparison,
    Outcome,
    attacker,
    pause,
)
from tests.reliability.hostile.served import Honest, Served, served
from tests.reliability.recording import Seen
from tests.transports import frames
from tests.transports.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    WINDOW_UPDATE,
    frame,
)
from tests.transports.raw_client import REQUEST, RawClient, request, requests
from tests.transports.violations import (
    ALLOWED,
    CALM,
    COMPRESSION,
    CONNECTION_ERRORS,
    FLOW,
    STREAM_ERRORS,
)

pytestmark = pytest.mark.row(42)

TRANSPORTS = ["http2"]

FLOOD = 105_000
"""Frames of a flood; the server takes 100,000."""


def _end(client: RawClient, reset_stream: int = 1) -> Outcome:
    """Waits until the server has said why it closes the connection."""
    assert client.read_to_the_end(30.0), "the server keeps the connection"
    return Outcome(client.goaway_code(), client.reset_code(reset_stream))


def _flood(address: str, contents: bytes) -> list[Outcome]:
    """Sends the same frames until the server has enough."""
    with RawClient(address, window=0) as client:
        client.send(request(1))
        return _flood_on(client, contents)


def _flood_on(client: RawClient, contents: bytes) -> list[Outcome]:
    for _ in range(FLOOD // 500):
        if not client.send(contents * 500):
            break
        # So that the server's last word arrives.
        client.read(0.0)
        client.frames = client.found(GOAWAY)
    return [_end(client)]


def rapid_resets(address: str, count: int) -> list[Outcome]:
    outcomes = []
    while count > 0:
        with RawClient(address) as client:
            reset = [
                request(number) + frame(RST_STREAM, struct.pack(">I", 8), 0, number)
                for number in range(1, 2_001, 2)
            ]
            client.send(b"".join(reset))
            count -= 200  # So many are taken on a connection.
            outcomes.append(_end(client))
    return outcomes


def continuations(address: str, count: int) -> list[Outcome]:
    outcomes = []
    while count > 0:
        with RawClient(address) as client:
            client.send(request(1, flags=0) + frame(CONTINUATION, b"", 0, 1) * 1_000)
            count -= 1_000
            outcomes.append(_end(client))
    return outcomes


def settings(address: str, count: int) -> list[Outcome]:
    return _flood(address, frames.settings(window=1_000))


def pings(address: str, count: int) -> list[Outcome]:
    return _flood(address, frame(PING, bytes(8)))


def acknowledged_pings(address: str, count: int) -> list[Outcome]:
    return _flood(address, frame(PING, bytes(8), ACK))


def priorities(address: str, count: int) -> list[Outcome]:
    return _flood(address, frame(PRIORITY, bytes(5), 0, 1))


def empty_data(address: str, count: int) -> list[Outcome]:
    return _flood(address, frame(DATA, b"", 0, 1))


def unknown_frames(address: str, count: int) -> list[Outcome]:
    return _flood(address, frame(0x77, bytes(100)))


def header_bombs(address: str, count: int) -> list[Outcome]:
    """16 KiB that stand for 65 MB."""
    block = hpack.Encoder().encode([*REQUEST, ("x", "y" * 4_000)]) + b"\xbe" * 16_000
    return _blocks(address, block[: 1 << 14], count)


def header_lists(address: str, count: int) -> list[Outcome]:
    """1 MiB each."""
    block = hpack.Encoder().encode([*REQUEST, *[(f"x{i}", "y" * 4_000) for i in range(260)]])
    return _blocks(address, block, count)


def broken_headers(address: str, count: int) -> list[Outcome]:
    return _blocks(address, b"\xff" * 10_000 + b"\0", count)


def _blocks(address: str, block: bytes, count: int) -> list[Outcome]:
    parts = [block[i : i + 16_384] for i in range(0, len(block), 16_384)]
    contents = b"".join(
        frame(
            CONTINUATION if index else HEADERS,
            part,
            END_HEADERS if index == len(parts) - 1 else 0,
            1,
        )
        for index, part in enumerate(parts)
    )
    outcomes = []
    for _ in range(max(1, count // 1_000)):
        with RawClient(address) as client:
            client.send(contents)
            outcomes.append(_end(client))
    return outcomes


def zero_windows(address: str, count: int) -> list[Outcome]:
    """Asks on 100 streams, and lets nothing be answered; then 1 byte at a time."""
    with RawClient(address, window=0) as client:
        streams = range(1, 201, 2)
        client.send(b"".join(request(number) + requests(number, b"", b"") for number in streams))
        assert client.ping()
        update = b"".join(
            frame(WINDOW_UPDATE, struct.pack(">I", 1), 0, number) for number in streams
        )
        for _ in range(FLOOD // 100):
            if not client.send(update):
                break
            client.read(0.0)
            client.frames = client.found(GOAWAY)
        return [_end(client)]


def tiny_increments(address: str, count: int) -> list[Outcome]:
    return _flood(address, frame(WINDOW_UPDATE, struct.pack(">I", 1)))


def overflows(address: str, count: int) -> list[Outcome]:
    outcomes = []
    for _ in range(max(1, count // 1_000)):
        with RawClient(address) as client:
            client.send(frame(WINDOW_UPDATE, struct.pack(">I", (1 << 31) - 1)))
            outcomes.append(_end(client))
    return outcomes


def many_streams(address: str, count: int) -> list[Outcome]:
    with RawClient(address) as client:
        for first in range(1, count // 5, 200):
            numbers = range(first, first + 200, 2)
            if not client.send(b"".join(map(request, numbers))):
                break
        client.read_to_the_end(30.0)
        refused = client.found(RST_STREAM)[-1].stream
        return [Outcome(client.goaway_code(), client.reset_code(refused))]


def windows_in_settings(address: str, count: int) -> list[Outcome]:
    """A frame of 10,000 windows, while 100 streams are open."""
    contents = frame(4, struct.pack(">HIHI", 4, 1_000, 4, 2_000) * 5_000)
    outcomes = []
    for _ in range(max(1, count // 1_000)):
        with RawClient(address) as client:
            client.send(b"".join(map(request, range(1, 201, 2))) + contents)
            outcomes.append(_end(client))
    return outcomes


def small_windows_in_settings(address: str, count: int) -> list[Outcome]:
    """Frames of 100 windows each, while 100 streams are open."""
    contents = frame(4, struct.pack(">HIHI", 4, 1_000, 4, 2_000) * 50)
    with RawClient(address, window=0) as client:
        client.send(b"".join(map(request, range(1, 201, 2))))
        return _flood_on(client, contents)


def unread_answers(address: str, count: int) -> list[Outcome]:
    """Requests whose answers nobody reads, with all windows open."""
    largest = (1 << 31) - 1
    with RawClient(address, window=largest) as client:
        client.send(frame(WINDOW_UPDATE, struct.pack(">I", largest - 65_535)) + request(1))
        client.socket.settimeout(0.5)
        try:
            for _ in range(count // 100):
                client.socket.sendall(requests(1, *[b""] * 100))
        except OSError:
            pass  # It does not read any further.
    return []


ATTACKS: dict[Attack, Outcome | None] = {
    rapid_resets: Outcome(CALM, None),
    continuations: Outcome(CALM, None),
    settings: Outcome(CALM, None),
    pings: Outcome(CALM, None),
    acknowledged_pings: Outcome(CALM, None),
    priorities: Outcome(CALM, None),
    empty_data: Outcome(CALM, None),
    unknown_frames: Outcome(CALM, None),
    header_bombs: Outcome(CALM, None),
    header_lists: Outcome(CALM, None),
    broken_headers: Outcome(COMPRESSION, None),
    zero_windows: Outcome(CALM, None),
    tiny_increments: Outcome(CALM, None),
    overflows: Outcome(FLOW, None),
    many_streams: Outcome(CALM, 0),
    windows_in_settings: Outcome(CALM, None),
    small_windows_in_settings: Outcome(CALM, None),
    unread_answers: None,
}
"""Attacks, and how each of their connections ends; None if it need not."""

SOAKED = {settings, acknowledged_pings, priorities, empty_data, unknown_frames, zero_windows}
"""Floods that take as long as others and differ from them in the kind of the frame only."""


def attacks_of(scale: int) -> list[Attack]:
    return [attack for attack in ATTACKS if attack not in SOAKED or scale == 1]


def complaints_about(attack: Attack, compared: Comparison, seen: Seen) -> list[str]:
    """Attacks; returns what did not end as expected."""
    outcomes, wrong = compared.beside(attack, seen)
    expected = ATTACKS[attack]
    if expected is not None and set(outcomes) != {expected}:
        wrong.append(f"{attack.__name__}: {set(outcomes)}, expected {expected}")
    return wrong


@pytest.fixture(scope="module")
def compared(request: pytest.FixtureRequest) -> Iterator[Comparison]:
    """A server for all attacks of a scale."""
    scale: int = request.param
    with (
        served() as server,
        attacker(scale) as program,
        Honest(server.address, pause(scale)) as honest,
    ):
        # Everything is used once before anything is measured.
        program.begin(rapid_resets, server.address, 1)
        program.outcomes()
        yield Comparison(server, program, honest, server.address, scale)


@pytest.mark.parametrize(
    ("compared", "attack"),
    [
        pytest.param(*scale.values, attack, marks=scale.marks, id=f"{scale.id}-{attack.__name__}")
        for scale in SCALES
        for attack in attacks_of(cast("int", scale.values[0]))
    ],
    indirect=["compared"],
)
def test_row_42_attacks(compared: Comparison, attack: Attack, seen: Seen) -> None:
    """Row 42: attackers are told why they are ended; nobody else notices; memory +16 MiB."""
    assert complaints_about(attack, compared, seen) == []


@pytest.fixture(scope="module")
def server() -> object:
    with served() as running:
        yield running


def malformed_frames(server: Served, seen: Seen) -> None:
    """Sends each malformed frame, header block and stream; checks what the server says to it."""
    wrong: list[object] = []
    before = server.watch_memory()
    cases = [(name, *case, 0) for name, case in CONNECTION_ERRORS.items()]
    cases += [(name, *case, 1) for name, case in STREAM_ERRORS.items()]
    cases += [(name, contents, 0, -1) for name, contents in ALLOWED.items()]
    with Honest(server.address) as honest:
        for name, contents, code, stream in cases:
            with RawClient(server.address, greets=False) as client:
                client.send(contents)
                if stream == 0:
                    is_right = client.read_to_the_end() and client.goaway_code() == (code or None)
                else:
                    if stream == 1:
                        client.read_until(lambda: client.reset_code(1) is not None, 3.0)
                    is_right = stream < 0 or client.reset_code(1) == code
                    is_right = is_right and client.ping() and client.goaway_code() is None
            if not is_right:
                wrong.append((name, code, client.goaway_code(), client.reset_code(1)))
        assert honest.steps_within(1.0)
    grown = server.peak() - before
    malformed = len(CONNECTION_ERRORS) + len(STREAM_ERRORS)
    seen(malformed=malformed, allowed=len(ALLOWED), memory_mib=grown / (1 << 20))
    assert wrong == []
    assert grown <= SLACK


def test_row_42_malformed_frames(server: Served, seen: Seen) -> None:
    """Row 42: each malformed frame, header block and stream gets the right code."""
    malformed_frames(server, seen)


def test_row_42_frames_in_single_bytes(server: Served) -> None:
    """Row 42: a request whose bytes come one by one is answered."""
    contents = PREFACE + frames.settings() + request(1) + requests(1, b"\x12\x00")
    with RawClient(server.address, greets=False) as client:
        for byte in contents:
            client.send(bytes([byte]))
            time.sleep(0.0002)  # So that they arrive one by one.
        assert client.read_until(lambda: len(client.answers(1)) == 1)
