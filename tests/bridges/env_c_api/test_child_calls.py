"""What calls and answers hold, and what a hostile child may send as an answer."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.bridges.env_c_api import child_calls
from dm_env_rpc_client.bridges.env_c_api.child_pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.context import Status
from dm_env_rpc_client.bridges.env_c_api.description import (
    BoundedAction,
    Description,
    ObservationDescription,
    ObservationType,
)
from dm_env_rpc_client.bridges.env_c_api.events import Event, event_text
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
    discrete=(BoundedAction("move", 0, 3),),
    continuous=(BoundedAction("turn", -1.0, float("inf")),),
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


def test_descriptions_and_frames_arrive_as_they_were(
    pipes: tuple[ChildPipe, ChildPipe],
) -> None:
    here, there = pipes
    here.send([child_calls.encode_description(DESCRIPTION), child_calls.encode_frame(FRAME)])
    description, encoded = there.receive(5.0)
    assert child_calls.decode_description(description) == DESCRIPTION
    frame = child_calls.decode_frame(encoded, DESCRIPTION)
    assert (frame.status, frame.reward) == (Status.RUNNING, 0.5)
    assert frame.observations is not None
    assert FRAME.observations is not None
    for sent, value in zip(FRAME.observations, frame.observations, strict=True):
        np.testing.assert_array_equal(value, sent)
    ended = child_calls.encode_frame(Frame(Status.TERMINATED, 1.0, None, ()))
    assert child_calls.decode_frame(ended, DESCRIPTION) == Frame(Status.TERMINATED, 1.0, None, ())


@pytest.mark.parametrize(
    "error",
    [
        LibraryError("start", 11, "not now"),
        PropertyError.of_result("read", "speed", "NOT_FOUND"),
        SpecError("a spec"),
        ProtocolError("a protocol"),
    ],
)
def test_errors_arrive_as_they_were(error: DmEnvRpcClientError) -> None:
    received = child_calls.decode_error(json.loads(json.dumps(child_calls.encode_error(error))))
    assert type(received) is type(error)
    assert (received.args, str(received)) == (error.args, str(error))


def test_other_errors_arrive_by_their_text() -> None:
    received = child_calls.decode_error(child_calls.encode_error(MemoryError("none left")))
    assert type(received) is DmEnvRpcClientError
    assert str(received) == "MemoryError: none left"


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
        child_calls.decode_error(message)


def test_invalid_properties() -> None:
    listed = {"a": PropertyAttributes.READ_WRITABLE, "b": PropertyAttributes.NONE}
    assert child_calls.decode_properties(child_calls.encode_properties(listed)) == listed
    for message in (None, [["a"]], [[1, 1]], [["a", 64]], [["a", True]]):
        with pytest.raises(ProtocolError):
            child_calls.decode_properties(message)
    with pytest.raises(ProtocolError):
        child_calls.decode_text(3)


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
    refused = 0
    for _ in range(4000):
        for decode, message in (
            (child_calls.decode_description, child_calls.encode_description(DESCRIPTION)),
            (lambda m: child_calls.decode_frame(m, DESCRIPTION), child_calls.encode_frame(FRAME)),
        ):
            try:
                decode(mutated(message, chance))
            except ProtocolError:
                refused += 1
    assert refused > 4000


def test_an_event_as_text() -> None:
    text = json.loads(event_text(FRAME.events[0]))
    assert text == {
        "id": 0,
        "name": "tick",
        "observations": [["NaN", "Infinity", "-Infinity"], "a"],
    }
