"""Messages between a process and its child, and what a hostile child may write instead."""

from __future__ import annotations

import json
import os
import random
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.bridges.env_c_api import child_calls, limits
from dm_env_rpc_client.bridges.env_c_api.child_pipe import MessagePipe
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

LENGTHS = struct.Struct("<IQ")

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


@pytest.fixture
def pipes() -> Iterator[tuple[MessagePipe, MessagePipe]]:
    reader, other_writer = os.pipe()
    other_reader, writer = os.pipe()
    pair = MessagePipe(reader, writer), MessagePipe(other_reader, other_writer)
    yield pair
    for pipe in pair:
        pipe.close()


@pytest.fixture
def scribble() -> Iterator[Any]:
    """Returns the message that some bytes are, followed by the end."""
    reader, writer = os.pipe()
    unused_reader, unused_writer = os.pipe()
    pipe = MessagePipe(reader, unused_writer)
    os.close(unused_reader)
    closed = False

    def receive(data: bytes) -> Any:
        nonlocal closed
        os.write(writer, data)
        os.close(writer)
        closed = True
        return pipe.receive(5.0)

    yield receive
    if not closed:
        os.close(writer)
    pipe.close()


def framed(message: Any, arrays: bytes = b"") -> bytes:
    text = message if isinstance(message, bytes) else json.dumps(message).encode()
    return LENGTHS.pack(len(text), len(arrays)) + text + arrays


def test_a_message_arrives_as_it_was(pipes: tuple[MessagePipe, MessagePipe]) -> None:
    here, there = pipes
    arrays = [
        np.arange(5, dtype=np.uint8),
        np.zeros((0, 4)),
        np.array(3.5),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.array([1, 2], np.int32),
    ]
    here.send(["name", None, arrays, "\N{CHECK MARK}", {"key": 1.5}])
    name, nothing, received, text, mapping = there.receive(5.0)
    assert (name, nothing, text, mapping) == ("name", None, "\N{CHECK MARK}", {"key": 1.5})
    for sent, array in zip(arrays, received, strict=True):
        np.testing.assert_array_equal(array, sent)
        assert (array.dtype, array.shape) == (sent.dtype, sent.shape)
        assert array.flags.writeable
        assert array.flags.aligned


def test_a_message_larger_than_the_pipe(pipes: tuple[MessagePipe, MessagePipe]) -> None:
    here, there = pipes
    array = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8)
    sender = threading.Thread(target=here.send, args=([array, array],))
    sender.start()
    one, other = there.receive(20.0)
    sender.join(20)
    np.testing.assert_array_equal(one, array)
    assert not np.shares_memory(one, other)


def test_deadlines_hold_in_both_directions(pipes: tuple[MessagePipe, MessagePipe]) -> None:
    here, there = pipes
    with pytest.raises(TimeoutError):
        here.receive(0.01)
    with pytest.raises(TimeoutError):
        there.send([np.zeros(1_000_000)], 0.05)
    with pytest.raises(TimeoutError):
        here.receive(0.05)


def test_the_end_of_the_pipe(scribble: Any) -> None:
    with pytest.raises(EOFError, match="the other side has closed the pipe"):
        scribble(framed(["half"])[:-2])


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
def test_what_is_no_message(scribble: Any, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        scribble(data)


def test_a_message_beyond_the_limits_is_not_sent(pipes: tuple[MessagePipe, MessagePipe]) -> None:
    here, _ = pipes
    huge = np.broadcast_to(np.zeros(1, np.uint8), (2 * limits.MAX_BYTES + (1 << 25),))
    with pytest.raises(ProtocolError, match=r"at most .* are allowed"):
        here.send([huge])


def test_descriptions_and_frames_arrive_as_they_were(
    pipes: tuple[MessagePipe, MessagePipe],
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
def test_errors_that_cannot_be(message: Any) -> None:
    with pytest.raises(ProtocolError, match="sent what cannot be"):
        child_calls.decode_error(message)


def test_properties_that_cannot_be() -> None:
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
