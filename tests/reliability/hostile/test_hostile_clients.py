"""Rows 42 and 50: hostile clients, with and without a token, beside an honest one."""

from __future__ import annotations

import collections
import contextlib
import functools
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hpack
import pytest

from dm_env_rpc_client import Tls
from dm_env_rpc_client.transports.services import CHECK
from tests.reliability.hostile.attacking import (
    SCALES,
    SLACK,
    Attack,
    Comparison,
    Outcome,
    attacker,
    pause,
)
from tests.reliability.hostile.served import Honest, Served, Where, served
from tests.reliability.recording import Seen
from tests.support.certificates import self_signed
from tests.support.scripted import settles
from tests.support.stopwatch import time_limit
from tests.transports import frames
from tests.transports.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    reset,
    window_update,
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

TRANSPORTS = ["http2"]

FLOOD = 105_000
"""Frames of a flood; the server takes 100,000."""


class Sent(NamedTuple):
    """What an attacker sends, and with which code each of its connections ends."""

    contents: Callable[[], bytes]

    code: int = CALM

    per_connection: int | None = 1_000
    """How much of the count of an attack one connection is; None for a flood, which is one
    connection that sends the contents until the server has enough."""

    first: Callable[[], bytes] = lambda: request(1)
    """What a flood begins with; its stream has no window for answers."""


def _flood_of(single: bytes) -> Sent:
    """A flood of the same frame."""
    return Sent(lambda: single * 500, per_connection=None)


def _streams() -> bytes:
    return b"".join(map(request, range(1, 201, 2)))


def _in_frames(block: bytes) -> bytes:
    """A block of headers in as many frames as it takes."""
    parts = [block[i : i + 16_384] for i in range(0, len(block), 16_384)]
    ends = [0] * (len(parts) - 1) + [END_HEADERS]
    kinds = [HEADERS] + [CONTINUATION] * (len(parts) - 1)
    return b"".join(frame(*each, 1) for each in zip(kinds, parts, ends, strict=True))


def _windows(count: int) -> bytes:
    """A SETTINGS frame of many windows."""
    return frame(SETTINGS, struct.pack(">HIHI", 4, 1_000, 4, 2_000) * (count // 2))


def _two_requests() -> bytes:
    return b"".join(request(number) + requests(number, b"", b"") for number in range(1, 201, 2))


SENT: dict[str, Sent] = {
    # So many resets are taken on a connection.
    "rapid resets": Sent(
        lambda: b"".join(request(number) + reset(number) for number in range(1, 2_001, 2)),
        per_connection=200,
    ),
    "continuations": Sent(lambda: request(1, flags=0) + frame(CONTINUATION, b"", 0, 1) * 1_000),
    # 16 KiB that stand for 65 MB.
    "header bombs": Sent(
        lambda: _in_frames(
            (hpack.Encoder().encode([*REQUEST, ("x", "y" * 4_000)]) + b"\xbe" * 16_000)[: 1 << 14]
        )
    ),
    # 1 MiB each.
    "header lists": Sent(
        lambda: _in_frames(
            hpack.Encoder().encode([*REQUEST, *[(f"x{i}", "y" * 4_000) for i in range(260)]])
        )
    ),
    "broken headers": Sent(lambda: _in_frames(b"\xff" * 10_000 + b"\0"), COMPRESSION),
    "overflows": Sent(lambda: window_update(0, (1 << 31) - 1), FLOW),
    "windows in SETTINGS": Sent(lambda: _streams() + _windows(10_000)),
    "SETTINGS": _flood_of(frames.settings(window=1_000)),
    "pings": _flood_of(frame(PING, bytes(8))),
    "acknowledged pings": _flood_of(frame(PING, bytes(8), ACK)),
    "priorities": _flood_of(frame(PRIORITY, bytes(5), 0, 1)),
    "empty DATA": _flood_of(frame(DATA, b"", 0, 1)),
    "unknown frames": _flood_of(frame(0x77, bytes(100))),
    "tiny increments": _flood_of(window_update(0, 1)),
    # Asks on 100 streams, and lets nothing be answered; then 1 byte at a time.
    "zero windows": Sent(
        lambda: b"".join(window_update(number, 1) for number in range(1, 201, 2)) * 5,
        per_connection=None,
        first=_two_requests,
    ),
    "small windows in SETTINGS": Sent(
        lambda: _windows(100) * 500, per_connection=None, first=_streams
    ),
}

FLOODS_TO_SOAK = {
    "SETTINGS", "acknowledged pings", "priorities", "empty DATA", "unknown frames", "zero windows"
}  # fmt: skip
"""Floods that take as long as others and differ from them in the kind of the frame only."""


def _end(client: RawClient) -> Outcome:
    """Waits until the server has said why it closes the connection."""
    assert client.read_to_the_end(30.0), "the server keeps the connection"
    return Outcome(client.goaway_code(), client.reset_code(1))


def _send(name: str, address: str, count: int) -> list[Outcome]:
    """Attacks with a row of `SENT`."""
    make, _, per_connection, first = SENT[name]
    contents = make()
    if per_connection is None:
        with RawClient(address, window=0) as client:
            client.send(first())
            for _ in range(FLOOD // 500):
                if not client.send(contents):
                    break
                # So that the server's last word arrives.
                client.read(0.0)
                client.frames = client.found(GOAWAY)
            return [_end(client)]
    outcomes = []
    for _ in range(max(1, count // per_connection)):
        with RawClient(address) as client:
            client.send(contents)
            outcomes.append(_end(client))
    return outcomes


def _many_streams(address: str, count: int) -> list[Outcome]:
    with RawClient(address) as client:
        for first in range(1, count // 5, 200):
            numbers = range(first, first + 200, 2)
            if not client.send(b"".join(map(request, numbers))):
                break
        client.read_to_the_end(30.0)
        refused = client.found(RST_STREAM)[-1].stream
        return [Outcome(client.goaway_code(), client.reset_code(refused))]


def _unread_answers(address: str, count: int) -> list[Outcome]:
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


def attack_of(name: str) -> Attack:
    """Returns what attacks with a row of `SENT`."""
    return functools.partial(_send, name)


ATTACKS: dict[str, tuple[Attack, Outcome | None]] = {
    **{name: (attack_of(name), Outcome(sent.code, None)) for name, sent in SENT.items()},
    "many streams": (_many_streams, Outcome(CALM, 0)),
    "unread answers": (_unread_answers, None),
}
"""Attacks, and how each of their connections ends; None if it need not."""


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
        program.begin(attack_of("rapid resets"), server.address, 1)
        program.outcomes()
        yield Comparison(server, program, honest, server.address, scale)


@pytest.mark.row(42)
@pytest.mark.parametrize(
    ("compared", "name"),
    [
        pytest.param(*scale.values, name, marks=scale.marks, id=f"{scale.id}-{name}")
        for scale in SCALES
        for name in ATTACKS
        if name not in FLOODS_TO_SOAK or scale.values == (1,)
    ],
    indirect=["compared"],
)
def test_row_42_attacks(compared: Comparison, name: str, seen: Seen) -> None:
    """Row 42: attackers are told why they are ended; nobody else notices; memory +16 MiB."""
    attack, expected = ATTACKS[name]
    outcomes, wrong = compared.beside(attack, seen)
    assert expected is None or set(outcomes) == {expected}
    assert wrong == []


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


@pytest.mark.row(42)
def test_row_42_malformed_frames(server: Served, seen: Seen) -> None:
    """Row 42: each malformed frame, header block and stream gets the right code."""
    malformed_frames(server, seen)


TOKEN = "tok-2b8e"

PER_SECOND = 2_000
"""Connections."""

SOCKETS = 100
METADATA_BYTES = 13_700


def _port(where: Where) -> tuple[str, int]:
    return "127.0.0.1", int(where.address.rpartition(":")[2])


def silent_connections(where: Where, count: int) -> list[Outcome]:
    """Connects and closes: every other one at once, the others soon."""
    begin = time.monotonic()
    held: collections.deque[socket.socket] = collections.deque()
    for number in range(count // 5):
        connecting = socket.socket()
        connecting.setblocking(False)
        connecting.connect_ex(_port(where))
        if number % 2:
            held.append(connecting)
        else:
            connecting.close()
        if len(held) > 100:
            held.popleft().close()
        time.sleep(max(0.0, begin + number / PER_SECOND - time.monotonic()))  # How often it comes.
    for connecting in held:
        connecting.close()
    return []


def large_metadata(where: Where, count: int) -> list[Outcome]:
    """Health checks with metadata in Huffman's code."""
    checked = [(name, CHECK if name == ":path" else value) for name, value in REQUEST]
    text = "a" * METADATA_BYTES
    block = hpack.Encoder().encode([(*pair, True) for pair in (*checked, ("x", text))])
    with RawClient(where.address) as client:
        numbers = iter(range(1, 2 * (count // 25), 2))
        answered = 0
        for asked, number in enumerate(numbers, 1):
            check = frame(HEADERS, block, END_HEADERS, number)
            client.send(check + requests(number, b"", end=True))
            while asked - answered > 8 and client.read(10.0):
                answered += len([part for part in client.found(HEADERS) if part.flags & 1])
                client.frames.clear()
            if client.is_over:
                break
    return []


def _client_hello() -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, sent, server_hostname="localhost").do_handshake()
    return sent.read()


def client_hellos(where: Where, count: int) -> list[Outcome]:
    """The same ClientHello on 100 sockets, each of which begins again when it was answered."""
    hello, left = _client_hello(), count // 25

    def begin() -> None:
        connecting = socket.socket()
        connecting.setblocking(False)
        connecting.connect_ex(_port(where))
        selector.register(connecting, selectors.EVENT_WRITE)

    def end(connected: Any) -> None:
        selector.unregister(connected)
        connected.close()

    with selectors.DefaultSelector() as selector:
        for _ in range(SOCKETS):
            begin()
        while left > 0:
            for key, mask in selector.select(10.0):
                connected: Any = key.fileobj
                with contextlib.suppress(OSError):
                    if mask & selectors.EVENT_WRITE:
                        connected.send(hello)
                        selector.modify(connected, selectors.EVENT_READ)
                        continue
                end(connected)
                left -= 1
                begin()
        for key in list(selector.get_map().values()):
            end(key.fileobj)
    return []


STRANGERS: list[Attack] = [silent_connections, large_metadata, client_hellos]


@pytest.mark.row(50)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("attack", STRANGERS)
@pytest.mark.parametrize("scale", SCALES)
def test_row_50_attacks(
    scale: int, attack: Attack, processes: int, seen: Seen, tmp_path: Path
) -> None:
    """Row 50: nobody else notices; memory +16 MiB; all descriptors are free afterwards."""
    options: dict[str, Any] = {"token": TOKEN}
    how: dict[str, Any] = {"token": TOKEN}
    if processes > 1:
        options["processes"] = processes
    if attack is client_hellos:
        key, cert = self_signed(tmp_path)
        options["credentials"] = Tls(cert=cert, key=key)
        how["credentials"] = Tls(ca=cert)
    with served(**options) as server, attacker(scale) as program:
        where = Where(server.address, how)
        with Honest(where, pause(scale)) as honest:
            before = server.descriptors()
            compared = Comparison(server, program, honest, where, scale)
            program.begin(attack, where, 1_000)  # Everything is used once.
            program.outcomes()
            _, wrong = compared.beside(attack, seen)
            with time_limit(1.0), Honest(where) as another:
                another.step()
            assert settles(lambda: server.descriptors() <= before), "descriptors are left open"
    assert not wrong
