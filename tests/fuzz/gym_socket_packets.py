"""Packets of gym-socket-api, to both ends: a value, a refusal, or a wait for more."""

from __future__ import annotations

import functools
import random

from dm_env_rpc_client.bridges.gym_socket import packets
from tests.bridges.gym_socket import transcripts
from tests.bridges.gym_socket.hostile import BOMB_SPACES, BOMBS, mutate, to_client, to_session

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
