"""What is fuzzed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import envelopes, gym_socket_packets, http2_frames, tensors

CORPUS = Path(__file__).with_name("corpus")
"""A folder for each target, with inputs that were found to be treated wrong once, in hex."""


class Target(NamedTuple):
    """Two functions of a module of this folder."""

    generate: Callable[[random.Random], bytes]
    """Makes an input; the same for the same state of its argument."""

    check: Callable[[bytes], str]
    """Tries an input, and returns what became of it; any exception is a finding."""


TARGETS: dict[str, Target] = {
    "tensors": Target(tensors.generate, tensors.check),
    "envelopes": Target(envelopes.generate, envelopes.check),
    "http2": Target(http2_frames.generate, http2_frames.check),
    "gym-socket": Target(gym_socket_packets.generate, gym_socket_packets.check),
}


def input_of(target: str, seed: int, index: int) -> bytes:
    """The input with this number: it does not depend on those before it."""
    return TARGETS[target].generate(random.Random(f"{seed} {index}"))
