"""Which state may follow which, as in "States" of the protocol overview."""

from __future__ import annotations

import itertools

import dm_env
import pytest

from dm_env_rpc_client import ProtocolError, dm_env_rpc_pb2
from dm_env_rpc_client.protocol.lifecycle import (
    Lifecycle,
    State,
    advance,
    next_states,
    step_type,
)
from tests.protocol.states import FOLLOWS, NAMES

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
