"""The states of a connection as a table, for clients and servers alike.

A connection is joined to a world or it is not; a joined one is in a sequence (RUNNING)
or between two. Which state a request leads to is the environment's choice among those
in the table ("States" in the protocol overview; StepRequest, ResetRequest and
ResetWorldRequest in the reference).
"""

from __future__ import annotations

import enum
from typing import Any

import dm_env

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ProtocolError

__all__ = [
    "TRANSITIONS",
    "Lifecycle",
    "State",
    "advance",
    "diagram",
    "next_states",
    "step_type",
]


class State(enum.Enum):
    """What a connection is doing."""

    NOT_JOINED = "not joined to a world"
    JOINED = "joined, before the first sequence"
    RUNNING = "in a sequence"
    TERMINATED = "after a sequence that reached its end"
    INTERRUPTED = "after a sequence that was cut short"

    # Members are looked up in tables with each step; an Enum's own hash is that of its name.
    __hash__ = object.__hash__

    @property
    def is_joined(self) -> bool:
        """Whether the connection is an agent of a world."""
        return self is not State.NOT_JOINED

    @classmethod
    def of_response(cls, state: int) -> State:
        """Returns the state in a StepResponse; ProtocolError where it is none."""
        try:
            return _BY_NUMBER[state]
        except KeyError:
            raise ProtocolError(
                f"the server sent environment state {state}; expected RUNNING (1), "
                "TERMINATED (2) or INTERRUPTED (3)"
            ) from None

    @property
    def number(self) -> int:
        """The EnvironmentStateType of a state that a StepResponse can hold."""
        return dm_env_rpc_pb2.EnvironmentStateType.Value(self.name)


_BY_NUMBER: dict[int, State] = {
    dm_env_rpc_pb2.RUNNING: State.RUNNING,
    dm_env_rpc_pb2.TERMINATED: State.TERMINATED,
    dm_env_rpc_pb2.INTERRUPTED: State.INTERRUPTED,
}

_BETWEEN = (State.JOINED, State.TERMINATED, State.INTERRUPTED)

# (state, payload of the request) -> the states that the answer may lead to. A request
# that is not in the table is refused with an error and changes nothing. Requests that
# are about a world rather than the connection are allowed everywhere.
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
    """Returns the states that `request` may lead to; empty where it is not allowed."""
    return TRANSITIONS.get((state, request), frozenset())


def advance(state: State, request: str, answered: State) -> State:
    """Returns `answered`, the state in an answer; ProtocolError where it cannot follow."""
    if answered not in next_states(state, request):
        raise ProtocolError(
            f"the server went from {state.name} ({state.value}) to {answered.name} "
            f"({answered.value}) on a {request} request, which the protocol does not allow"
        )
    return answered


def step_type(before: State, after: State) -> dm_env.StepType:
    """Returns the type of the step that led from one state to the next."""
    if before is not State.RUNNING:
        return dm_env.StepType.FIRST
    return dm_env.StepType.MID if after is State.RUNNING else dm_env.StepType.LAST


def diagram() -> str:
    """Returns the table as a Mermaid state diagram, as in the docstring of the package."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.NOT_JOINED.name}"]
    arrows: dict[tuple[State, State], list[str]] = {}
    for (state, request), following in TRANSITIONS.items():
        for after in following:
            if (state, after) != (State.NOT_JOINED, State.NOT_JOINED) and (
                state is not after or request in ("step", "reset")
            ):
                arrows.setdefault((state, after), []).append(request)
    order = list(State)
    for (state, after), requests in sorted(
        arrows.items(), key=lambda arrow: (order.index(arrow[0][0]), order.index(arrow[0][1]))
    ):
        lines.append(f"    {state.name} --> {after.name}: {', '.join(sorted(set(requests)))}")
    return "\n".join(lines)


class Lifecycle:
    """Follows one connection through the table, answer by answer, at either end.

    Attributes:
      state: what the connection is doing.
      previous: what it was doing before the last answer.
      world_name: the world that it is joined to.
    """

    __slots__ = ("previous", "state", "world_name")

    def __init__(self) -> None:
        self.state = self.previous = State.NOT_JOINED
        self.world_name = ""

    def allows(self, request: str) -> bool:
        """Whether the connection may send a request, named by its payload field, now."""
        return bool(next_states(self.state, request))

    def answered(self, field: str, request: Any, answer: Any) -> None:
        """Takes note of a request that was answered without an error.

        Args:
          field: the payload field of both.
          request: the request message.
          answer: the response message.

        Raises:
          ProtocolError: the answer has a state that cannot follow. It is adopted where it
            is a state at all: that is what the server is in.
        """
        before = self.previous = self.state
        if field == "step":
            after = self.state = State.of_response(answer.state)
            advance(before, field, after)
        elif field == "join_world":
            self.state, self.world_name = State.JOINED, request.world_name
        elif field == "leave_world":
            self.state = State.NOT_JOINED
        elif before is State.RUNNING and (
            field == "reset" or (field == "reset_world" and request.world_name == self.world_name)
        ):
            self.state = State.INTERRUPTED
