"""Messages between a process and its child, and what a hostile child may write instead."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.tensors.memory_limits import Limits

LENGTHS = struct.Struct("<IQ")


def framed(message: Any, arrays: bytes = b"") -> bytes:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return LENGTHS.pack(len(text), len(arrays)) + text + arrays


@pytest.mark.parametrize(
    "data",
    [
        LENGTHS.pack(2**32 - 1, 0),
        LENGTHS.pack(2, 2**63),
        framed(b"not json"),
        framed(b"\xff\xfe"),
        framed(b"[" * 50_000),
        framed(b"9" * 10_000),
        framed({"dtype": "|O", "shape": [1]}, bytes(8)),
        framed({"dtype": ["<f8"], "shape": [1]}, bytes(8)),
        framed({"dtype": "<f8", "shape": [2]}, bytes(8)),
        framed({"dtype": "<f8", "shape": [2**62, 2**62]}, bytes(8)),
        framed({"dtype": "<f8", "shape": [-1]}, bytes(8)),
        framed({"dtype": "<f8", "shape": [0.5]}, bytes(8)),
        framed({"dtype": "<f8", "shape": 3}, bytes(24)),
        framed({"dtype": "|u1", "shape": [1] * 33}, bytes(8)),
        framed({"dtype": "|u1", "shape": [0, 2**62, 2**62]}),
    ],
)
def test_an_invalid_message(pipes: tuple[ChildPipe, ChildPipe], data: bytes) -> None:
    here, there = pipes
    os.write(here._writer, data)
    with pytest.raises(ProtocolError):
        there.receive(5.0)


def test_a_message_beyond_the_limits_is_neither_sent_nor_received(
    pipes: tuple[ChildPipe, ChildPipe],
) -> None:
    here, there = pipes
    here.limits = Limits(message_bytes=1000)
    huge = np.broadcast_to(np.zeros(1, np.uint8), (1 << 25,))
    most = r"at most 16779216 of each are allowed \(Limits\.message_bytes\)"
    with pytest.raises(ProtocolError, match=most):
        here.send([huge])
    with pytest.raises(TimeoutError):
        there.send([huge], 0.2)  # Nobody reads it.
    with pytest.raises(ProtocolError, match=f"33554432 bytes of arrays; {most}"):
        here.receive(10)
