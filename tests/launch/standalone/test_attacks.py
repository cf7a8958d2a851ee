"""Row 56: what hostile clients do to the one-file server, on the oldest and the newest Python.

It is for machines and networks that one trusts: floods are no part of this.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from dm_env_rpc_client import ConnectionLostError, dm_env_rpc_pb2, make
from tests.fuzz.wire import flipped
from tests.launch.standalone.interpreters import NEWEST, OLDEST, interpreter, served
from tests.reliability.hostile import attacking, test_bombs
from tests.reliability.hostile import test_hostile_clients as hostile_clients
from tests.reliability.hostile.served import Honest, Served
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.scripted import settles
from tests.support.stopwatch import patience
from tests.transports import frames
from tests.transports.frames import DATA, PREFACE, RST_STREAM, WINDOW_UPDATE, frame, grpc_message
from tests.transports.raw_client import RawClient, request, requests

pytestmark = pytest.mark.row(56)

MIB = 1 << 20


@pytest.fixture(params=[OLDEST, NEWEST], scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(interpreter(request.param), "Catch") as running:
        with make(running.address) as env:  # Everything is used once before it is measured.
            env.reset()
        yield running


def is_served(server: Served, seconds: float) -> None:
    """An honest client takes a step in time."""
    with Honest(server.address) as honest:
        assert honest.step() < patience(seconds)


@pytest.fixture(autouse=True)
def is_as_before(server: Served) -> Iterator[None]:
    """An honest client is served afterwards, and all descriptors are back."""
    is_served(server, 60.0)
    assert settles(lambda: server.descriptors() <= 8, 20)
    before = server.descriptors()
    yield
    is_served(server, 5.0)
    assert settles(lambda: server.descriptors() <= before, 20)


def test_row_56_malformed_frames(server: Served, seen: Seen) -> None:
    """Row 56: each malformed frame, header block and stream gets the code of RFC 9113."""
    hostile_clients.malformed_frames(server, seen)


@pytest.mark.parametrize(
    "name",
    [name for name, sent in hostile_clients.SENT.items() if sent.per_connection == 1_000],
)
def test_row_56_frames_that_ask_for_much(server: Served, name: str, seen: Seen) -> None:
    """Row 56: header blocks and settings that ask for much end with the right code."""
    memory = server.watch_memory()
    attack, expected = hostile_clients.ATTACKS[name]
    outcomes = attack(server.address, 10_000)
    grown = server.peak() - memory
    seen(attacks=1, memory_mib=grown / MIB)
    assert set(outcomes) == {expected}
    assert grown <= attacking.SLACK


@pytest.mark.parametrize("scale", test_bombs.SCALES)
@test_bombs.REQUESTS
def test_row_56_bombs(server: Served, name: str, scale: int, seen: Seen) -> None:
    """Rows 21 and 33: a request takes at most 4 times its size and 64 MiB, and is refused."""
    bomb, grown = test_bombs.refused(server, name, scale)
    seen(bombs=1, memory_mib=grown / MIB)
    assert grown <= 4 * len(bomb) + 64 * MIB


def test_row_56_silent_and_slow_clients(server: Served, seen: Seen) -> None:
    """Row 40: more silent sockets than there is room for; a byte at a time; answers unread."""
    greeting = PREFACE + frames.settings()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address, greets=False)) for _ in range(400)]
        for client in clients[::2]:
            client.send(greeting[:10])
        is_served(server, 2.0)
        with RawClient(server.address) as slow:
            for byte in request(1) + requests(1, b"\x12\x00"):
                slow.send(bytes([byte]))
            assert slow.read_until(lambda: len(slow.answers(1)) == 1)
        # Those that were there first were closed for later ones.
        assert any(not client.send(b"x") or client.read_to_the_end(1.0) for client in clients[:90])
    seen(silent_sockets=400)


def test_row_56_clients_that_never_read(server: Served, seen: Seen) -> None:
    """Row 40: what answers take that nobody reads is bounded."""
    largest = (1 << 31) - 1
    memory = server.watch_memory()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(RawClient(server.address, window=largest))
            client.send(frame(WINDOW_UPDATE, struct.pack(">I", largest - 65_535)) + request(1))
            client.socket.settimeout(0.5)
            # The server stops to read, or ends the stream, which is more than its window.
            with contextlib.suppress(OSError):
                client.socket.sendall(requests(1, *[b""] * 400_000))
        is_served(server, 2.0)
        grown = server.peak() - memory
    seen(unread_connections=4, memory_mib=grown / MIB)
    assert grown <= 4 * 24 * MIB


def test_row_56_one_client_too_many(server: Served) -> None:
    """Row 26: the stream beyond the limit ends with RESOURCE_EXHAUSTED; a place is free again."""
    with RawClient(server.address) as client:
        client.send(b"".join(map(request, range(1, 513, 2))))
        assert client.ping()
        with pytest.raises(ConnectionLostError, match="RESOURCE_EXHAUSTED"):
            make(server.address)

    def has_room() -> bool:
        try:
            make(server.address).close()
        except ConnectionLostError:
            return False
        return True

    # The server has to notice first that the other client is gone.
    assert settles(has_room)


def mutated(rng: random.Random) -> bytes:
    """What a client sends, with some bits of it changed, and perhaps cut or repeated."""
    fixed = [b"", b"\x0a\x00", b"\x12\x00", b"\x1a\x02\x12\x00"]
    actions = {1: dm_env_rpc_pb2.Tensor(int32s={"array": [rng.randint(-1, 3)]})}
    step = dm_env_rpc_pb2.EnvironmentRequest(
        step={"actions": actions, "requested_observations": [1, 2, 3]}
    )
    messages = [*fixed, rng.randbytes(rng.randint(1, 60)), step.SerializeToString()]
    parts = [request(1)]
    for _ in range(rng.randint(1, 6)):
        message = flipped(rng.choice(messages), rng) if rng.random() < 0.5 else rng.choice(messages)
        parts.append(frame(DATA, grpc_message(message), rng.choice((0, 0, 0, 1)), 1))
    parts.append(
        rng.choice([b"", frame(RST_STREAM, bytes(4), 0, 1), request(3), frames.settings()])
    )
    contents = b"".join(parts)
    return flipped(contents, rng) if rng.random() < 0.7 else contents


@counts(4_000, 100_000)
def test_row_56_mutated_frames(server: Served, count: int, seen: Seen) -> None:
    """Row 56: whatever bytes come, the server goes on, and its errors are those of requests."""
    rng = random.Random(count)
    memory = server.watch_memory()
    port = int(server.address.rpartition(":")[2])
    for _ in range(count // 4):
        contents = b"".join(mutated(rng) for _ in range(4))
        with (
            socket.create_connection(("127.0.0.1", port), 10) as attacker,
            contextlib.suppress(OSError),  # It is reset while it sends.
        ):
            attacker.sendall(PREFACE + frames.settings() + contents)
            attacker.shutdown(socket.SHUT_WR)
            while attacker.recv(1 << 16):
                pass
    grown = server.peak() - memory
    seen(mutated_frames=count, memory_mib=grown / MIB)
    assert grown <= attacking.SLACK
