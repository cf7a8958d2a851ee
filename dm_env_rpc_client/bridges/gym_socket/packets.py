"""The packets of gym-socket-api as values; `packet_codec` encodes and decodes them.

The numbers are those of "Command packets" in the protocol document; only the latest dialect
has 7 and 8.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

TRUNCATED = "TimeLimit.truncated"
"""The entry of a step's info that is true if a time limit ended the episode."""


class WhichSpace(enum.IntEnum):
    """Which space a Get Space packet asks for."""

    ACTION = 0
    OBSERVATION = 1


class Request:
    """What a client sends."""


@dataclasses.dataclass(frozen=True)
class Handshake(Request):
    """A client's first message: the environment to make, "" for none."""

    env_name: str


@dataclasses.dataclass(frozen=True)
class Reset(Request):
    """Packet 0, answered with an observation."""


@dataclasses.dataclass(frozen=True)
class Step(Request):
    """Packet 1, answered with a `StepAnswer`; `action` is a JSON value."""

    action: Any


@dataclasses.dataclass(frozen=True)
class GetSpace(Request):
    """Packet 2, answered with a space."""

    which: WhichSpace


@dataclasses.dataclass(frozen=True)
class SampleAction(Request):
    """Packet 3, answered with an action."""


@dataclasses.dataclass(frozen=True)
class Monitor(Request):
    """Packet 4; only the latest dialect has `video` and an answer, an error string."""

    directory: str
    resume: bool = False
    force: bool = False
    video: bool = False


@dataclasses.dataclass(frozen=True)
class Render(Request):
    """Packet 5, without an answer."""


@dataclasses.dataclass(frozen=True)
class Upload(Request):
    """Packet 6, answered with an error string."""

    directory: str
    api_key: str
    algorithm_id: str


@dataclasses.dataclass(frozen=True)
class UniverseConfigure(Request):
    """Packet 7 of the latest dialect, answered with an error string."""

    settings: Any


@dataclasses.dataclass(frozen=True)
class UniverseWrap(Request):
    """Packet 8 of the latest dialect, answered with an error string."""

    wrapper: str
    settings: Any


class StepAnswer(NamedTuple):
    """The answer to a Step.

    Attributes:
      observation: a uint8 array from a byte list; a JSON value otherwise.
      reward: float64.
      done: whether the episode is over.
      info: a JSON value.
    """

    observation: Any
    reward: float
    done: bool
    info: Any
