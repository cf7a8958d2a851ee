"""The states of a connection, as one table for clients and servers.

A connection is either joined to a world or not. A joined connection is either in a sequence
(RUNNING) or between two sequences. If the table lists several next states for a request, the
environment chooses one of them. See "States" in the protocol overview, and StepRequest,
ResetRequest and ResetWorldRequest in the reference.
"""

from __future__ import annotations

import enum
from typing import Any

import dm_env

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ProtocolError


class State(enum.Enum):
    """The state of a connection."""

    NOT_JOINED = "not joined to a world"
    JOINED = "joined, before the first sequence"
    RUNNING = "in a sequence"
    TERMINATED = "after a sequence that reached its end"
    INTERRUPTED = "after a sequence that was cut short"

    # Every step uses members as keys; Enum's own hash would hash the name each time.
    __hash__ = object.__hash__

    @property
    def is_joined(self) -> bool:
        """Whether the connection is joined to a world as an agent."""
        return self is not State.NOT_JOINED

    @classmethod
    def of_response(cls, state: int) -> State:
        """Return the state for a number in a StepResponse, or raise ProtocolError."""
        try:
            return _BY_NUMBER[state]
        except KeyError:
            raise ProtocolError(
                f"the server sent the invalid environment state {state}; expected RUNNING (1), "
                "TERMINATED (2) or INTERRUPTED (3)"
            ) from None

    @property
    def number(self) -> int:
        """The EnvironmentStateType of a state that can occur in a StepResponse."""
        return _NUMBERS[self]


# Before Python 3.12, an enum member takes 0.09 us, a module global 0.01 us; a step needs ten.
_RUNNING = State.RUNNING
_FIRST, _MID, _LAST = dm_env.StepType.FIRST, dm_env.StepType.MID, dm_env.StepType.LAST

_BY_NUMBER: dict[int, State] = {
    dm_env_rpc_pb2.RUNNING: State.RUNNING,
    dm_env_rpc_pb2.TERMINATED: State.TERMINATED,
    dm_env_rpc_pb2.INTERRUPTED: State.INTERRUPTED,
}

_NUMBERS = {state: number for number, state in _BY_NUMBER.items()}

_BETWEEN = (State.JOINED, State.TERMINATED, State.INTERRUPTED)

# (state, payload field of the request) -> the possible states after the answer. A request that is
# not in the table is refused with an error and changes nothing. Requests that concern a world
# rather than the connection are allowed in every state.
TRANSITIONS: dict[tuple[State, str], frozenset[State]] = {
    (State.NOT_JOINED, "join_world"): frozenset({State.JOINED}),
    (State.NOT_JOINED, "leave_world"): frozenset({State.NOT_JOINED}),
    (State.RUNNING, "step"): frozenset({State.RUNNING, State.TERMINATED, State.INTERRUPTED}),
    (State.RUNNING, "reset"): frozenset({State.INTERRUPTED}),
    (State.RUNNING, "reset_world"): frozenset({State.RUNNING, State.INTERRUPTED}),
    (State.RUNNING, "leave_world"): frozenset({State.NOT_JOINED}),
}
for _state in _BETWEEN:
    TRANSITIONS[_state, "step"] = frozenset({State.RUNNING})
    TRANSITIONS[_state, "reset"] = frozenset({_state})
    TRANSITIONS[_state, "reset_world"] = frozenset({_state})
    TRANSITIONS[_state, "leave_world"] = frozenset({State.NOT_JOINED})
for _state in State:
    for _request in ("create_world", "destroy_world", "extension"):
        TRANSITIONS[_state, _request] = frozenset({_state})
TRANSITIONS[State.NOT_JOINED, "reset_world"] = frozenset({State.NOT_JOINED})


def next_states(state: State, request: str) -> frozenset[State]:
    """Return the possible states after `request`, or an empty set if it is not allowed."""
    return TRANSITIONS.get((state, request), frozenset())


_AFTER_STEP = {state: next_states(state, "step") for state in State}


def advance(state: State, request: str, answered: State) -> State:
    """Return `answered` if it is a possible next state; otherwise raise ProtocolError."""
    if answered not in next_states(state, request):
        raise ProtocolError(
            f"the server went from {state.name} ({state.value}) to {answered.name} "
            f"({answered.value}) on a {request} request, which the protocol does not allow"
        )
    return answered


def step_type(before: State, after: State) -> dm_env.StepType:
    """Return the type of the step that leads from one state to the next."""
    if before is not _RUNNING:
        return _FIRST
    return _MID if after is _RUNNING else _LAST


class Lifecycle:
    """The state of one connection, which the client and the server each update with every answer.

    Attributes:
      state: the current state.
      previous: the state before the last answer.
      world_name: the name of the last joined world.
      created: the name of the last created world; empty if there is none.
      is_batch: whether the world is a batch, whose rows can begin sequences in any step.
    """

    __slots__ = ("created", "is_batch", "previous", "state", "world_name")

    def __init__(self) -> None:
        self.state = self.previous = State.NOT_JOINED
        self.world_name = self.created = ""
        self.is_batch = False

    def allows(self, request: str) -> bool:
        """Whether a request with this payload field is allowed in the current state."""
        return bool(next_states(self.state, request))

    def answered(self, field: str, request: Any, answer: Any) -> None:
        """Update the state after a successful answer to a request.

        Args:
          field: the payload field of both messages.
          request: the request message.
          answer: the response message.

        Raises:
          ProtocolError: the state in the answer is invalid, or not a possible next state. In the
            second case, the state is adopted nevertheless, because it is the server's state.
        """
        if field == "step":
            after = _BY_NUMBER.get(answer.state)
            if after is self.state is _RUNNING:
                self.previous = _RUNNING  # Fast path for most steps, without two calls.
            else:
                self.stepped(after or State.of_response(answer.state))
            return
        before = self.previous = self.state
        if field == "join_world":
            self.state, self.world_name = State.JOINED, request.world_name or self.created
        elif field == "create_world":
            self.created = answer.world_name
        elif field == "leave_world":
            self.state = State.NOT_JOINED
        elif before is State.RUNNING and (
            field == "reset" or (field == "reset_world" and request.world_name == self.world_name)
        ):
            self.state = State.INTERRUPTED

    def stepped(self, after: State) -> None:
        """Update the state after a step, and raise the same errors as `answered`."""
        before = self.previous = self.state
        self.state = after
        if after not in _AFTER_STEP[before]:
            advance(before, "step", after)
