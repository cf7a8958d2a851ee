"""Every packet of gym-socket-api as bytes, written down from the protocol document alone.

The latest dialect's additions are marked; everything else is the same in both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dm_env_rpc_client.bridges.gym_socket import packets
from dm_env_rpc_client.bridges.gym_socket.packets import Dialect

BOTH: tuple[Dialect, ...] = ("first", "latest")
FIRST: tuple[Dialect, ...] = ("first",)
LATEST: tuple[Dialect, ...] = ("latest",)


class Exchanged(NamedTuple):
    """A packet and its answer, as values and as bytes; None where there is no answer."""

    request: packets.Request
    sent: bytes
    answer: Any
    received: bytes | None
    dialects: tuple[Dialect, ...] = BOTH


class Given:
    """A `Reader` of bytes that are there; EOFError for those that are not."""

    def __init__(self, data: bytes):
        self.left = data

    def read(self, count: int) -> bytes:
        data, self.left = self.left[:count], self.left[count:]
        if len(data) < count:
            raise EOFError
        return data

    def read_into(self, memory: memoryview) -> None:
        memory[:] = self.read(len(memory))


HANDSHAKES = {
    b"\x00\x0b\x00\x00\x00CartPole-v1": packets.Handshake("CartPole-v1"),
    b"\x00\x00\x00\x00\x00": packets.Handshake(""),
    b"\x00\x05\x00\x00\x00caf\xc3\xa9": packets.Handshake("caf\u00e9"),
}

ERRORS = {
    b"\x00\x00\x00\x00": "",
    b"\x0e\x00\x00\x00no environment": "no environment",
}

# The document's example.
BOX = b'{"type":"Box","shape":[2,3],"low":[-1,-1,-1,-1,-1,-1],"high":[1,1,1,1,1,1]}'

EXCHANGES = {
    "reset": Exchanged(packets.Reset(), b"\x00", [0.5, -1.0], b"\x00\x0a\x00\x00\x00[0.5,-1.0]"),
    "reset with a byte list": Exchanged(
        packets.Reset(),
        b"\x00",
        np.arange(6, dtype=np.uint8).reshape(2, 1, 3),
        b"\x01\x16\x00\x00\x00"
        b"\x03\x00\x00\x00"
        b"\x02\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00"
        b"\x00\x01\x02\x03\x04\x05",
    ),
    "step": Exchanged(
        packets.Step(1),
        b"\x01\x00\x01\x00\x00\x001",
        packets.StepAnswer([0.5], 1.5, False, {}),
        b"\x00\x05\x00\x00\x00[0.5]\x00\x00\x00\x00\x00\x00\xf8\x3f\x00\x02\x00\x00\x00{}",
    ),
    "step that is done": Exchanged(
        packets.Step([1.0, [0, 1]]),
        b"\x01\x00\x0b\x00\x00\x00[1.0,[0,1]]",
        packets.StepAnswer(7, -2.0, True, {"TimeLimit.truncated": True}),
        b"\x00\x01\x00\x00\x007\x00\x00\x00\x00\x00\x00\x00\xc0\x01"
        b'\x1c\x00\x00\x00{"TimeLimit.truncated":true}',
    ),
    "step with a byte list": Exchanged(
        packets.Step(0),
        b"\x01\x00\x01\x00\x00\x000",
        packets.StepAnswer(np.array([255, 0], np.uint8), 0.0, False, {}),
        b"\x01\x0a\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\xff\x00"
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00{}",
    ),
    "get action space": Exchanged(
        packets.GetSpace(packets.WhichSpace.ACTION),
        b"\x02\x00",
        {"type": "Discrete", "n": 5},
        b'\x19\x00\x00\x00{"type":"Discrete","n":5}',
    ),
    "get observation space": Exchanged(
        packets.GetSpace(packets.WhichSpace.OBSERVATION),
        b"\x02\x01",
        {"type": "Box", "shape": [2, 3], "low": [-1] * 6, "high": [1] * 6},
        b"\x4b\x00\x00\x00" + BOX,
    ),
    "sample action": Exchanged(packets.SampleAction(), b"\x03", 3, b"\x00\x01\x00\x00\x003"),
    "monitor": Exchanged(
        packets.Monitor("/tmp/m", resume=True, force=False),
        b"\x04\x01\x00\x06\x00\x00\x00/tmp/m",
        None,
        None,
        FIRST,
    ),
    "monitor of the latest dialect": Exchanged(
        packets.Monitor("/tmp/m", resume=False, force=True, video=True),
        b"\x04\x00\x01\x01\x06\x00\x00\x00/tmp/m",
        "no",
        b"\x02\x00\x00\x00no",
        LATEST,
    ),
    "render": Exchanged(packets.Render(), b"\x05", None, None),
    "upload": Exchanged(
        packets.Upload("/tmp/m", "key", ""),
        b"\x06\x06\x00\x00\x00/tmp/m\x03\x00\x00\x00key\x00\x00\x00\x00",
        "",
        b"\x00\x00\x00\x00",
    ),
    "universe configure": Exchanged(
        packets.UniverseConfigure({"remotes": 1}),
        b'\x07\x0d\x00\x00\x00{"remotes":1}',
        "",
        b"\x00\x00\x00\x00",
        LATEST,
    ),
    "universe wrap": Exchanged(
        packets.UniverseWrap("Vision", {}),
        b"\x08\x06\x00\x00\x00Vision\x02\x00\x00\x00{}",
        "no such wrapper",
        b"\x0f\x00\x00\x00no such wrapper",
        LATEST,
    ),
}
IN_DIALECTS = {
    f"{name}, {dialect}": (exchanged, dialect)
    for name, exchanged in EXCHANGES.items()
    for dialect in exchanged.dialects
}
"""Each of them, in each of its dialects."""
