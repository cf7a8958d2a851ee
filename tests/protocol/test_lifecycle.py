"""Which state may follow which, as in "States" of the protocol overview."""

from __future__ import annotations

import itertools
from typing import Any

import dm_env
import pytest

from dm_env_rpc_client import ProtocolError, dm_env_rpc_pb2
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.lifecycle import (
    Lifecycle,
    State,
    advance,
    next_states,
    step_type,
)
from dm_env_rpc_client.protocol.pipeline import (
    KEEPALIVE_SECONDS,
    LOADING_KEEPALIVE_SECONDS,
    Pending,
    Pipeline,
)
from tests.protocol.states import FOLLOWS, NAMES
from tests.support.scripted import extension

REQUESTS = [field.name for field in dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields]
NOT_JOINED, JOINED, RUNNING, TERMINATED, INTERRUPTED = State
every_state = pytest.mark.parametrize("state", State)


def test_the_table_of_the_documents_is_about_all_states_and_requests() -> None:
    assert set(FOLLOWS) == set(itertools.product(State.__members__, REQUESTS))
    assert set(State.__members__) == set(NAMES)


@pytest.mark.parametrize("request_name", [*REQUESTS, "no_such_request"])
@every_state
def test_where_a_request_leads(state: State, request_name: str) -> None:
    after = FOLLOWS.get((state.name, request_name), frozenset())
    assert {each.name for each in next_states(state, request_name)} == after


@pytest.mark.parametrize(
    ("before", "request_name", "after"), list(itertools.product(State, REQUESTS, State))
)
def test_advancing_follows_the_table(before: State, request_name: str, after: State) -> None:
    if after.name in FOLLOWS[before.name, request_name]:
        assert advance(before, request_name, after) is after
    else:
        with pytest.raises(
            ProtocolError, match=f"from {before.name} .* to {after.name} .* on a {request_name}"
        ):
            advance(before, request_name, after)


@pytest.mark.parametrize("state", [RUNNING, TERMINATED, INTERRUPTED])
def test_states_have_the_numbers_of_the_protocol(state: State) -> None:
    assert State.of_response(state.number) is state
    assert state.number == getattr(dm_env_rpc_pb2, state.name)


# One connection, answer by answer.

STEPPED = {number: dm_env_rpc_pb2.StepResponse(state=number) for number in (1, 2, 3)}  # type: ignore[arg-type]


def joined(*numbers: int) -> Lifecycle:
    """After joining and steps that led to these states."""
    lifecycle = Lifecycle()
    request = dm_env_rpc_pb2.JoinWorldRequest(world_name="w")
    lifecycle.answered("join_world", request, dm_env_rpc_pb2.JoinWorldResponse())
    step(lifecycle, *numbers)
    return lifecycle


def reset_world(lifecycle: Lifecycle, name: str) -> State:
    request = dm_env_rpc_pb2.ResetWorldRequest(world_name=name)
    lifecycle.answered("reset_world", request, None)
    return lifecycle.state


def step(lifecycle: Lifecycle, *numbers: int) -> State:
    for number in numbers:
        lifecycle.answered("step", None, STEPPED[number])
    return lifecycle.state


def test_a_connection_is_followed_from_joining_to_leaving() -> None:
    lifecycle = Lifecycle()
    assert (lifecycle.state, lifecycle.allows("step")) == (NOT_JOINED, False)
    lifecycle = joined()
    assert (lifecycle.state, lifecycle.world_name) == (JOINED, "w")
    assert lifecycle.allows("step")
    for number, state, kind in [
        (1, RUNNING, dm_env.StepType.FIRST),
        (1, RUNNING, dm_env.StepType.MID),
        (2, TERMINATED, dm_env.StepType.LAST),
        (1, RUNNING, dm_env.StepType.FIRST),
        (3, INTERRUPTED, dm_env.StepType.LAST),
        (1, RUNNING, dm_env.StepType.FIRST),
    ]:
        assert step(lifecycle, number) is state
        assert step_type(lifecycle.previous, lifecycle.state) is kind
    lifecycle.answered("leave_world", None, None)
    assert lifecycle.state is NOT_JOINED


def test_a_reset_of_this_world_interrupts_and_of_another_does_not() -> None:
    lifecycle = joined()
    assert reset_world(lifecycle, "w") is JOINED
    step(lifecycle, 1)
    assert reset_world(lifecycle, "other") is RUNNING
    assert reset_world(lifecycle, "w") is INTERRUPTED


@pytest.mark.parametrize(
    ("numbers", "illegal"), [((), 2), ((), 3), ((1, 2), 3), ((1, 3), 2), ((1, 2), 2)]
)
def test_a_state_that_cannot_follow_is_reported_and_adopted(
    numbers: tuple[int, ...], illegal: int
) -> None:
    lifecycle = joined(*numbers)
    with pytest.raises(ProtocolError, match="which the protocol does not allow"):
        step(lifecycle, illegal)
    assert lifecycle.state is State.of_response(illegal)


@pytest.mark.parametrize("number", [0, 99])
def test_a_number_that_is_no_state_is_reported_and_changes_nothing(number: int) -> None:
    lifecycle = joined(1)
    answer = dm_env_rpc_pb2.StepResponse(state=number)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match=f"environment state {number}"):
        lifecycle.answered("step", None, answer)
    assert lifecycle.state is RUNNING


FIELDS = {
    "create_world": LOADING_KEEPALIVE_SECONDS,
    "join_world": LOADING_KEEPALIVE_SECONDS,
    "step": KEEPALIVE_SECONDS,
    "reset": LOADING_KEEPALIVE_SECONDS,
    "reset_world": LOADING_KEEPALIVE_SECONDS,
    "leave_world": LOADING_KEEPALIVE_SECONDS,
    "destroy_world": LOADING_KEEPALIVE_SECONDS,
    "extension": KEEPALIVE_SECONDS,
}


def waiting(field: str, state: State = State.RUNNING, is_batch: bool = False) -> Pipeline:
    """A pipeline in which a request of some kind waits for its answer, and a step behind it."""
    lifecycle = Lifecycle()
    lifecycle.state, lifecycle.is_batch = state, is_batch
    pipeline = Pipeline("server")
    request: Any = EncodedRequest(field, b"", bytes)
    pipeline.push([Pending(request, lifecycle=lifecycle), Pending(request)])
    return pipeline


def test_all_requests_are_tried() -> None:
    fields = dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields
    assert {field.name for field in fields} == FIELDS.keys()


@pytest.mark.parametrize("field", FIELDS)
def test_the_default_is_that_of_the_oldest_request(field: str) -> None:
    pipeline = waiting(field)
    assert pipeline.keepalive_seconds() == FIELDS[field]
    pipeline.keepalive_timeout = 45.0  # The user's holds for all.
    assert pipeline.keepalive_seconds() == 45.0


@pytest.mark.parametrize("state", State)
def test_a_step_that_begins_a_sequence_counts_as_a_reset(state: State) -> None:
    begins = state is not State.RUNNING
    expected = LOADING_KEEPALIVE_SECONDS if begins else KEEPALIVE_SECONDS
    assert waiting("step", state).keepalive_seconds() == expected
    assert waiting("extension", state).keepalive_seconds() == KEEPALIVE_SECONDS
    # So does each step of a batch.
    assert waiting("step", state, True).keepalive_seconds() == LOADING_KEEPALIVE_SECONDS


def test_without_a_request_nothing_is_long() -> None:
    pipeline = Pipeline("server")
    assert pipeline.keepalive_seconds() == KEEPALIVE_SECONDS
    pipeline.push([Pending.of(extension(1), None, Lifecycle())])
    assert pipeline.keepalive_seconds() == KEEPALIVE_SECONDS
