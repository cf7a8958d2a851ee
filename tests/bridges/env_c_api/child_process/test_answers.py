"""What calls and answers hold, and what a hostile child may send as an answer."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.bridges.env_c_api.child_process import pipe
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.context import Status
from dm_env_rpc_client.bridges.env_c_api.description import (
    ContinuousAction,
    Description,
    DiscreteAction,
    Event,
    ObservationDescription,
    ObservationType,
)
from dm_env_rpc_client.bridges.env_c_api.library_properties import PropertyAttributes
from dm_env_rpc_client.bridges.env_c_api.runner import Frame
from dm_env_rpc_client.errors import (
    DmEnvRpcClientError,
    LibraryError,
    PropertyError,
    ProtocolError,
    SpecError,
)

DESCRIPTION = Description(
    name="name",
    discrete=(DiscreteAction("move", 0, 3),),
    continuous=(ContinuousAction("turn", -1.0, float("inf")),),
    texts=("say",),
    observations=(
        ObservationDescription("image", ObservationType.BYTES, (2, 3)),
        ObservationDescription("path", ObservationType.DOUBLES, (0, 2)),
        ObservationDescription("any", ObservationType.INT64S, None),
        ObservationDescription("text", ObservationType.STRING, (0,)),
    ),
    events=("tick",),
    fps=None,
)

FRAME = Frame(
    Status.RUNNING,
    0.5,
    [np.ones((2, 3), np.uint8), np.zeros((0, 2)), np.array(7, np.int64), "text"],
    (Event(0, "tick", (np.array([np.nan, np.inf, -np.inf]), "a")),),
)


def decode_frame(message: Any) -> Frame:
    frame = pipe.decode(Frame, message)
    pipe.check_frame(frame, DESCRIPTION)
    return frame


def test_descriptions_and_frames_arrive_as_they_were(
    pipes: tuple[ChildPipe, ChildPipe],
) -> None:
    here, there = pipes
    here.send([pipe.encode(DESCRIPTION), pipe.encode(FRAME)])
    description, encoded = there.receive(5.0)
    assert pipe.decode(Description, description) == DESCRIPTION
    frame = decode_frame(encoded)
    assert (frame.status, frame.reward) == (Status.RUNNING, 0.5)
    assert frame.observations is not None
    assert FRAME.observations is not None
    for sent, value in zip(FRAME.observations, frame.observations, strict=True):
        np.testing.assert_array_equal(value, sent)
    ended = Frame(Status.TERMINATED, 1.0, None, ())
    assert decode_frame(pipe.encode(ended)) == ended


@pytest.mark.parametrize(
    "frame",
    [
        FRAME._replace(status=Status.TERMINATED),
        FRAME._replace(observations=None),
        FRAME._replace(observations=(FRAME.observations or [])[:-1]),
        FRAME._replace(events=(Event(0, "other", ()),)),
        FRAME._replace(events=(Event(-1, "tick", ()),)),
        FRAME._replace(events=(Event(1, "tick", ()),)),
    ],
)
def test_frames_that_do_not_fit_the_description(frame: Frame) -> None:
    with pytest.raises(ProtocolError, match="the child process sent"):
        decode_frame(pipe.encode(frame))


@pytest.mark.parametrize(
    "error",
    [
        LibraryError("start", 11, "not now"),
        PropertyError.of_result("read", "speed", "NOT_FOUND"),
        SpecError("a spec"),
        ProtocolError("a protocol"),
        MemoryError("none left"),
    ],
)
def test_errors_arrive_as_they_were_or_by_their_text(error: Exception) -> None:
    received = pipe.decode_error(json.loads(json.dumps(pipe.encode_error(error))))
    if isinstance(error, MemoryError):
        error = DmEnvRpcClientError("MemoryError: none left")
    assert type(received) is type(error)
    assert (received.args, str(received)) == (error.args, str(error))


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        ["OSError", ["x"]],
        ["SpecError", [1]],
        ["SpecError", []],
        ["PropertyError", ["read", "x", "FINE"]],
        ["PropertyError", ["ask", "x", "NOT_FOUND"]],
        ["LibraryError", ["start", "1", "x"]],
        [["SpecError"], ["x"]],
    ],
)
def test_invalid_errors(message: Any) -> None:
    with pytest.raises(ProtocolError, match="sent an invalid answer"):
        pipe.decode_error(message)


def test_invalid_properties() -> None:
    listed = {"a": PropertyAttributes.READ_WRITABLE, "b": PropertyAttributes.NONE}
    type_ = dict[str, PropertyAttributes]
    assert pipe.decode(type_, pipe.encode(listed)) == listed
    for message in (None, [["a"]], [[1, 1]], [["a", 64]], [["a", True]]):
        with pytest.raises(ProtocolError):
            pipe.decode(type_, message)
    with pytest.raises(ProtocolError):
        pipe.decode(str, 3)


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy with one part of it replaced or left out."""
    strange: list[Any] = [None, -1, 2**70, 0.5, "x", [], {}, True, [[]], np.zeros(3)]
    if not isinstance(value, list) or not value or chance.random() < 0.3:
        return chance.choice(strange)
    copy = list(value)
    index = chance.randrange(len(copy))
    if chance.random() < 0.2:
        del copy[index]
    else:
        copy[index] = mutated(copy[index], chance)
    return copy


def test_mutated_messages_are_valid_or_one_error() -> None:
    chance = random.Random(0)
    refused = taken = 0
    for _ in range(4000):
        for decode, message in (
            (lambda m: pipe.decode(Description, m), pipe.encode(DESCRIPTION)),
            (decode_frame, pipe.encode(FRAME)),
        ):
            try:
                decoded: object = decode(mutated(message, chance))
            except ProtocolError:
                refused += 1
            else:
                taken += 1
                assert isinstance(decoded, Description | Frame)
    assert refused > 4000
    assert taken > 100
