"""Packets of gym-socket-api, to both ends: a value, a refusal, or a wait for more."""

from __future__ import annotations

import copy
import functools
import random

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.bridges.gym_socket import (
    packets,
    server_session,
    space_json,
)
from dm_env_rpc_client.bridges.gym_socket.hosted_environment import as_hosted
from dm_env_rpc_client.bridges.gym_socket.packets import Limits, ObservationBounds
from dm_env_rpc_client.errors import ProtocolError, SpecError
from tests.bridges.gym_socket import hosted, transcripts
from tests.bridges.gym_socket.peers import sized

LIMITS = Limits()
LENGTHS = [0, 1, 255, 1 << 20, (1 << 20) + 1, 1 << 31, (1 << 32) - 1]
FIELD = 1 << 20


# Whole packets at the limits of what is taken, made to cost the most.
BOMBS = [
    b"\x01\x00" + sized(text)
    for text in (
        b"[" * FIELD,
        b"[" + b"[]," * (FIELD // 3 - 1) + b"0]",
        b"[" + b"1.5," * (FIELD // 4 - 1) + b"0]",
        b"[" * 32 + b"1.5," * 60_000 + b"0" + b"]" * 32,
        b'"' * FIELD,
        b'"' + b'\\"' * (FIELD // 2 - 1) + b'"',
        b'["' + "\U0001f600".encode() * 200_000 + b'"]',
        b"9" * FIELD,
        b"\xff" * FIELD,
        b'{"a":' * 30 + b"0" + b"}" * 30,
    )
]
BOMB_SPACES = [
    sized(b'{"type":"MultiBinary","n":1048576}'),
    sized(b'{"type":"Box","shape":[1000000000],"low":[],"high":[]}'),
    sized(b'{"type":"Box","shape":[0,4294967295],"low":[],"high":[]}'),
    sized(b'{"type":"Tuple","subspaces":[' + b'{"type":"Discrete","n":1},' * 9000 + b"0]}"),
    sized(b'{"type":"Box","shape":[65536],"low":[' + b"0.5," * 65535 + b'0],"high":[]}'),
    b"\xff\xff\xff\xff",
]


def mutate(rng: random.Random, data: bytes) -> bytes:
    mutant = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(6)
        at = rng.randrange(len(mutant) + 1)
        if kind == 0 and mutant:
            mutant[at % len(mutant)] ^= 1 << rng.randrange(8)
        elif kind == 1 and mutant:
            mutant[at % len(mutant)] = rng.randrange(256)
        elif kind == 2:
            del mutant[at:]
        elif kind == 3:
            mutant[at:at] = rng.randbytes(rng.randint(1, 8))
        elif kind == 4:
            mutant[at : at + 4] = rng.choice(LENGTHS).to_bytes(4, "little")
        else:
            mutant[at:at] = mutant[: rng.randrange(len(mutant) + 1)]
    return bytes(mutant)


@functools.cache
def _unused_session(dialect: packets.Dialect) -> server_session.ServerSession:
    options = server_session.Options(dialect=dialect)
    return server_session.ServerSession(as_hosted(hosted.Frames()), options)


def to_session(data: bytes, dialect: packets.Dialect) -> str:
    """Gives bytes to a server's session, packet after packet."""
    # A copy: making a session takes longer than what it is given. The environment has no state.
    hosted_session = copy.copy(_unused_session(dialect))
    reader = transcripts.Given(data)
    try:
        while reader.left:
            hosted_session.answer(packets.read_request(reader, dialect, LIMITS))
    except (ProtocolError, server_session.RefusedPacketError):
        return "disconnect"
    except EOFError:
        return "waits"
    return "answered"


def to_client(data: bytes, exchanged: transcripts.Exchanged) -> str:
    """Gives bytes to a client as the answer to a packet."""
    try:
        answer = packets.read_answer(
            transcripts.Given(data), exchanged.request, LIMITS, ObservationBounds((2, 1, 3))
        )
        if isinstance(exchanged.request, packets.GetSpace):
            spec = elements.to_spec(space_json.from_json(answer, "the space"), "action")
            space_json.from_jsonable(spec, [0], "the action", check_bounds=False)
    except (ProtocolError, SpecError):
        return "error"
    except EOFError:
        return "waits"
    return "value"


TO_SESSION, TO_CLIENT = 0, 1


@functools.cache
def _exchanges() -> list[tuple[transcripts.Exchanged, packets.Dialect]]:
    return [
        (exchanged, dialect)
        for exchanged in transcripts.EXCHANGES.values()
        for dialect in exchanged.dialects
    ]


def generate(rng: random.Random) -> bytes:
    """Which end, which exchange, and the packets."""
    which = rng.randrange(len(_exchanges()))
    exchanged, _ = _exchanges()[which]
    if exchanged.received is not None and rng.random() < 0.5:
        answer = exchanged.received
        if rng.random() < 0.01:
            answer = rng.choice(BOMB_SPACES)
        return bytes([TO_CLIENT, which]) + mutate(rng, answer)
    others = rng.choices(_exchanges(), k=rng.choice([0, 1, 3]))
    requests = [exchanged.sent, *(other.sent for other, _ in others)]
    if rng.random() < 0.002:
        requests.append(rng.choice(BOMBS))
    rng.shuffle(requests)
    return bytes([TO_SESSION, which]) + mutate(rng, b"".join(requests))


def check(contents: bytes) -> str:
    """Gives the packets to the end that they are for."""
    end, which, given = *(contents + b"\0\0")[:2], contents[2:]
    exchanged, dialect = _exchanges()[which % len(_exchanges())]
    if end % 2 == TO_CLIENT and exchanged.received is not None:
        return f"client: {to_client(given, exchanged)}"
    return f"session: {to_session(given, dialect)}"
