"""Hostile bytes to both ends, over sockets; run as `python -m tests.bridges.gym_socket.hostile N`.

Prints JSON: how many frames ended how, how far memory peaked above where it stood before
them, and which modules were imported meanwhile. A process of its own, so that the peak is
that of these frames.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import logging
import random
import socket
import sys
from collections import Counter
from typing import Any

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.bridges.gym_socket import (
    GymSocketEnvironment,
    packets,
    serve,
    server_session,
    space_json,
)
from dm_env_rpc_client.bridges.gym_socket.hosted_environment import as_hosted
from dm_env_rpc_client.bridges.gym_socket.packets import Limits, ObservationBounds
from dm_env_rpc_client.errors import DmEnvRpcClientError, ProtocolError, SpecError
from dm_env_rpc_client.transports.net.addresses import parse_host_port
from tests.bridges.gym_socket import hosted, transcripts
from tests.bridges.gym_socket.peers import OK, Peer, scripted_peer, sized
from tests.support.memory import peak

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


def to_live_server(address: str, data: bytes) -> str:
    """Sends bytes to a server and reads until it closes."""
    with socket.create_connection(parse_host_port(address), 10) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    return "disconnect"


def to_live_client(data: bytes) -> str:
    """Gives bytes to a GymSocketEnvironment as all that its server says."""

    def script(peer: Peer) -> None:
        with contextlib.suppress(ConnectionError):  # The client may leave in the middle.
            peer.send(data)

    with scripted_peer(script) as address:
        try:
            with GymSocketEnvironment(address, "ab", request_timeout=0.05) as environment:
                environment.reset()
        except DmEnvRpcClientError as error:
            return type(error).__name__
    return "value"


def main(count: int) -> dict[str, Any]:
    logging.disable()
    rng = random.Random(28)
    sent = [exchanged.sent for exchanged, _ in transcripts.IN_DIALECTS.values()]
    name = b"\x00" + sized(b"Frames")
    outcomes: Counter[str] = Counter()
    with serve({"Frames": hosted.Frames}, "localhost:0", max_connections=8) as server:
        # What is loaded on first use does not count.
        to_live_server(server.address, name + b"\x00\x03")
        to_live_client(OK + BOMB_SPACES[0] * 2 + b"\x00" + sized(b"[]"))
        modules = set(sys.modules)
        before = peak()
        for index in range(count):
            if index % 5:
                outcomes[to_live_server(server.address, mutate(rng, name + rng.choice(sent)))] += 1
            else:
                outcomes[to_live_client(mutate(rng, OK + BOMB_SPACES[0] * 2))] += 1
        for bomb in BOMBS:
            outcomes[to_live_server(server.address, name + b"\x00" + bomb)] += 1
        for bomb in BOMB_SPACES:
            outcomes[to_live_client(OK + bomb * 2)] += 1
        for identity in ("os:system", "tests.evil:Env-v0", "http://evil/", "a" * 256):
            handshake = packets.encode_request(packets.Handshake(identity))
            outcomes[to_live_server(server.address, handshake)] += 1
        after = peak()
        errors = [repr(error) for error in server.errors]
    return {
        "frames": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "peak_growth_mib": round((after - before) / 2**20, 2),
        "imported": sorted(set(sys.modules) - modules),
        "server_errors": errors,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
