"""Row 50: clients without a token that make a server work, with an honest one beside them."""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import hpack
import pytest

from dm_env_rpc_client import Tls
from dm_env_rpc_client.transports.services import CHECK
from tests.reliability.hostile.attacking import (
    SCALES,
    Attack,
    Comparison,
    Outcome,
    attacker,
    pause,
)
from tests.reliability.hostile.served import Honest, Where, served
from tests.reliability.recording import Seen
from tests.support.certificates import self_signed
from tests.support.scripted import settles
from tests.support.stopwatch import time_limit
from tests.transports.frames import END_HEADERS, HEADERS, frame
from tests.transports.raw_client import REQUEST, RawClient, requests

pytestmark = pytest.mark.row(50)

TRANSPORTS = ["http2"]

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


ATTACKS: list[Attack] = [silent_connections, large_metadata, client_hellos]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("attack", ATTACKS)
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
