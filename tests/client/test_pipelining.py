"""The pure pipeline: which answer belongs to which request, and when nobody can tell."""

from __future__ import annotations

import pytest
from google.rpc import status_pb2
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    ProtocolError,
)
from dm_env_rpc_client.protocol import envelopes, pipeline
from dm_env_rpc_client.protocol.pipeline import Pending, Pipeline
from dm_env_rpc_client.testing import Response
from tests.support.both_transports import EVERY
from tests.support.scripted import extension

TRANSPORTS = EVERY


def request(number: int = 0, size: int = 0) -> Pending:
    pending = Pending(envelopes.encode_request(extension(number)))
    pending.size = size or pending.size
    return pending


def answer(number: int) -> bytes:
    return Response(extension=extension(number)).SerializeToString()


def error(number: int) -> bytes:
    return Response(error=status_pb2.Status(code=5, message=str(number))).SerializeToString()


def test_there_is_room_for_one_request_of_any_size() -> None:
    fifo = Pipeline("there")
    assert fifo.has_room(1 << 40)
    fifo.push([request(size=1 << 40)])
    assert not fifo.has_room(1)
    fifo.answer(answer(0))
    assert fifo.has_room(1 << 40)


def test_count_and_bytes_are_bounded() -> None:
    fifo = Pipeline("there")
    for _ in range(pipeline.MAX_REQUESTS_IN_FLIGHT):
        assert fifo.has_room(1)
        fifo.push([request()])
    assert not fifo.has_room(1)
    assert fifo.push([request(), request()]) == []
    assert len(fifo) == pipeline.MAX_REQUESTS_IN_FLIGHT
    assert fifo.oldest is not None
    other = Pipeline("there")
    other.push([request(size=pipeline.MAX_BYTES_IN_FLIGHT - 10)])
    assert other.has_room(10)
    assert not other.has_room(11)
    fits, too_much = request(size=10), request(size=1)
    assert other.push([fits, too_much]) == [envelopes.encode_request(extension(0)).message]
    assert (fits.is_sent, too_much.is_sent) == (True, False)


class PipelineMachine(RuleBasedStateMachine):
    """Any order of requests, answers, errors and nonsense, against a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fifo = Pipeline("there")
        self.in_flight: list[tuple[int, Pending]] = []
        self.numbers = iter(range(1_000_000))
        self.poisoned = False

    @precondition(lambda self: not self.poisoned)
    @rule()
    def push(self) -> None:
        number = next(self.numbers)
        pending = request(number)
        self.fifo.push([pending])
        self.in_flight.append((number, pending))

    @precondition(lambda self: not self.poisoned and self.in_flight)
    @rule(is_error=st.booleans())
    def answer(self, is_error: bool) -> None:
        number, pending = self.in_flight.pop(0)
        assert self.fifo.answer(error(number) if is_error else answer(number)) is pending
        if is_error:
            with pytest.raises(DmEnvRpcError) as caught:
                pending.result()
            assert caught.value.message == str(number)
        else:
            assert pending.result() == extension(number)

    @precondition(lambda self: not self.poisoned)
    @rule(message=st.sampled_from([b"", b"\xff", Response(step={}).SerializeToString()]))
    def answer_with_nonsense(self, message: bytes) -> None:
        with pytest.raises(ProtocolError) as caught:
            self.fifo.answer(message)
        woken = self.fifo.poison(caught.value)
        pendings = [pending for _, pending in self.in_flight]
        assert [pending for pending in woken if pending in pendings] == pendings
        for index, (_, pending) in enumerate(self.in_flight):
            with pytest.raises(ProtocolError if index == 0 else ConnectionLostError):
                pending.result()
        self.in_flight = []
        self.poisoned = True

    @precondition(lambda self: self.poisoned)
    @rule()
    def push_in_vain(self) -> None:
        with pytest.raises(ConnectionLostError):
            self.fifo.push([request()])

    @invariant()
    def the_oldest_is_next(self) -> None:
        assert len(self.fifo) == len(self.in_flight)
        assert self.fifo.oldest is (self.in_flight[0][1] if self.in_flight else None)


PipelineMachine.TestCase.settings = settings(max_examples=50, deadline=None)
TestPipelineMachine = PipelineMachine.TestCase
