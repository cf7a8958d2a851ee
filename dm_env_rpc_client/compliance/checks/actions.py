"""Checks that the server accepts actions that conform to the specs, and refuses all others.

If the valid actions depend on the state of the environment, as they do in chess, the options must
specify a MODULE:FUNCTION policy. With such a policy, checks that send arbitrary values within the
specs are skipped.

If the server refuses a valid action, the finding is an error, because a client that follows the
specs cannot act. If the server accepts an invalid action, the finding is a warning, because a
client that follows the specs never sends one. The documents make the client responsible for sending
valid requests ("Streaming", and "Ranges" for bounds).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from google.protobuf import any_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import Check, overview, reference
from dm_env_rpc_client.compliance.checks.foundations import (
    a_failed_request_is_answered,
    a_world_can_be_joined,
)
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import Actions, ProbeAgent
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.tensors import packing
from dm_env_rpc_client.tensors.spec_manager import TensorField

_of_steps = functools.partial(reference, "StepRequest/Response")

_MAX_ELEMENTS = 16
"""The maximum number of elements that are tested individually in each action."""

Tensor = dm_env_rpc_pb2.Tensor

_Cases: TypeAlias = Iterator[tuple[Tensor, str]]
"""Test values for an action, each with the reason why it is valid or invalid."""


def _joined(trial: Trial) -> ProbeAgent:
    """Return an agent in a running sequence, or raise NotOfferedError if it has no actions."""
    agent = trial.join()
    if not agent.specs.actions:
        raise NotOfferedError("the environment has no actions")
    agent.run()
    return agent


def _take(agent: ProbeAgent, actions: Actions, why: str) -> None:
    agent.step(actions, expected=f"a StepResponse, because {why}")


def _refuse(agent: ProbeAgent, actions: Actions, why: str) -> None:
    agent.refuse_step(f"an error, because {why}", actions)


def _sent(
    send: Callable[[ProbeAgent, Actions, str], None],
    needs: tuple[Check, ...],
    heading: str,
    clause: str,
    lacking: str = "",
    *,
    leniency: str = "",
    explained_by: tuple[Check, ...] = (),
    needs_any_value: bool = False,
) -> Callable[[Callable[[TensorField, ProbeAgent], _Cases]], Check]:
    """Build a check from a function that yields test values for each action.

    Args:
      send: `_take` or `_refuse`.
      needs: as for `Check`.
      heading: the heading of the clause.
      clause: the clause of the protocol overview.
      lacking: the reason for skipping the check if nothing was sent; "" if the check passes then.
      leniency: as for `Check`.
      explained_by: as for `Check`.
      needs_any_value: whether all values within the specs must be valid.
    """

    def decorate(cases: Callable[[TensorField, ProbeAgent], _Cases]) -> Check:
        @functools.wraps(cases)
        def run(trial: Trial) -> None:
            agent, count = _joined(trial), 0
            if needs_any_value and trial.options.load_policy() is not None:
                raise NotOfferedError(
                    "the specs alone do not determine which actions are valid; the policy does"
                )
            for field in agent.actions.values():
                for tensor, why in cases(field, agent):
                    trial.recover(agent)
                    agent.run()
                    actions = {**agent.valid_actions(), field.uid: tensor}
                    send(agent, actions, f"{field.label} {why}")
                    count += 1
            if lacking and not count:
                raise NotOfferedError(lacking)

        return overview(heading, clause, leniency, needs, explained_by)(run)

    return decorate


_taken = functools.partial(_sent, _take, (a_world_can_be_joined,))
_refused = functools.partial(
    _sent,
    _refuse,
    (a_failed_request_is_answered,),
    leniency="a client that follows the specs sends no invalid actions",
)


def _shape(field: TensorField, length: int = 2) -> tuple[int, ...]:
    """Return the shape of a field, with `length` for each variable dimension."""
    return tuple(length if size < 0 else size for size in field.shape)


def _packed(field: TensorField, value: Any) -> Tensor:
    """Pack a value without checking its bounds."""
    array = np.asarray(value, field.codec.dtype)
    return packing.pack_array(array, field.codec, field.label)


def _pick(field: TensorField) -> Any:
    """Return a scalar that is valid for every element, or None if no scalar is.

    The result is None for messages, because the suite does not know their types.
    """
    if field.codec.data_type == dm_env_rpc_pb2.PROTO:
        return None
    if not field.codec.is_numeric:
        return "" if field.codec.data_type == dm_env_rpc_pb2.STRING else False
    minimum, maximum = field.bounds
    low = None if minimum is None else np.max(minimum)
    high = None if maximum is None else np.min(maximum)
    if low is not None and high is not None and low > high:
        return None
    zero = field.codec.dtype.type(0)
    if (low is None or zero >= low) and (high is None or zero <= high):
        return zero
    return low if low is not None and np.isfinite(low) else high


def _filled(field: TensorField, shape: tuple[int, ...]) -> Tensor | None:
    """Return a tensor of valid elements, or None if no valid element is known."""
    element = _pick(field)
    return None if element is None else _packed(field, np.full(shape, element, field.codec.dtype))


@_of_steps(
    "Actions are optional: a step may have only some of them.", needs=(a_world_can_be_joined,)
)
def each_action_can_be_sent_alone(trial: Trial) -> None:
    """Send each action on its own; a server is allowed to refuse this.

    A violation is an error because a client that sends only some actions gets a wrong answer or no
    answer.
    """
    agent = _joined(trial)
    for uid in agent.valid_actions():
        agent.run()
        agent.try_step({uid: agent.valid_actions()[uid]}, "the environment needs all its actions")


@_of_steps("The set of actions may be empty.", needs=(a_world_can_be_joined,))
def a_step_may_be_empty(trial: Trial) -> None:
    """Take a step without actions during a sequence; a server is allowed to refuse this.

    A violation is an error because a client that sends no actions gets a wrong answer or no answer.
    """
    agent = trial.run()
    agent.try_step({}, "the environment needs its actions")


@_refused("TensorSpec", "An action has the data type of its spec.")
def actions_of_another_type_are_refused(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send each action with elements of another type.

    A violation is a warning because only a faulty client sends an invalid action.
    """
    shape = _shape(field)
    for other in ("doubles", "floats", "int64s", "strings"):
        if other != field.codec.field:
            tensor = Tensor(shape=shape)
            element: Any = "0" if other == "strings" else _pick(field) or 0
            getattr(tensor, other).array.extend([_as(other, element)] * int(np.prod(shape)))
            yield tensor, f"is {field.codec.field}, not {other}"


def _as(payload: str, element: Any) -> Any:
    if payload == "strings":
        return str(element)
    number = 0 if isinstance(element, str) or not np.isfinite(element) else element
    return int(np.clip(number, -(2**62), 2**62)) if payload == "int64s" else float(number)


@_refused("Tensors", "A tensor has a payload.")
def actions_without_payload_are_refused(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send each action with a shape but without elements.

    A violation is a warning because only a faulty client sends an invalid action.
    """
    yield Tensor(shape=_shape(field)), "has no payload"


@_refused("TensorSpec", "An action has the shape of its spec.")
def actions_of_another_shape_are_refused(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send each action with one dimension too many, and with wrong lengths.

    A violation is a warning because only a faulty client sends an invalid action.
    """
    shape = _shape(field)
    wrong = [(*shape, 1), (*shape, 2)]
    for axis, size in enumerate(field.shape):
        if size >= 0:
            wrong.append((*shape[:axis], size + 1, *shape[axis + 1 :]))
    for other in wrong:
        tensor = _filled(field, other)
        if tensor is not None:
            yield tensor, f"has shape {list(field.shape)}, not {list(other)}"


@_refused("Tensors", "The elements fill the shape.")
def actions_that_do_not_fill_their_shape_are_refused(
    field: TensorField, agent: ProbeAgent
) -> _Cases:
    """Send each action with one element too many.

    A violation is a warning because only a faulty client sends an invalid action.
    """
    count = int(np.prod(_shape(field))) + 1
    tensor = _filled(field, (max(count, 2),))
    if tensor is not None:
        tensor.shape[:] = _shape(field)
        yield tensor, f"has more elements than shape {list(field.shape)}"


def _edges(field: TensorField, beyond: bool) -> _Cases:
    """Yield values at a bound or, if `beyond`, with one element out of bounds.

    Each value comes with the reason why it is valid or invalid.

    If each element has its own bounds, all other elements are exactly at their bounds. A server
    that does not read the elements in row-major order therefore finds the value out of bounds.
    """
    shape = _shape(field)
    minimum, maximum = field.bounds
    for side, bound in (("minimum", minimum), ("maximum", maximum)):
        if bound is None or not field.codec.is_numeric:
            continue
        inside = np.broadcast_to(bound, shape).astype(field.codec.dtype)
        if not np.all(np.isfinite(inside)):
            continue
        if not beyond:
            yield _packed(field, inside), f"is at its {side}, which is inclusive"
            continue
        indices = list(np.ndindex(*shape))
        if len(indices) > _MAX_ELEMENTS:
            indices = [*indices[: _MAX_ELEMENTS - 1], indices[-1]]
        for index in indices:
            outside = _beyond(inside[index], side == "minimum", field.codec.dtype)
            if outside is not None:
                value = inside.copy()
                value[index] = outside
                why = f"has element {list(index)} beyond its {side} {inside[index]}"
                yield _packed(field, value), why


def _beyond(bound: Any, below: bool, dtype: np.dtype[Any]) -> Any:
    """Return a value clearly out of bounds, or None if the data type has no such value."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        outside = int(bound) - 1 if below else int(bound) + 1
        return outside if info.min <= outside <= info.max else None
    margin = max(1.0, abs(float(bound)))
    outside_float = dtype.type(float(bound) - margin if below else float(bound) + margin)
    return outside_float if np.isfinite(outside_float) else None


@_refused(
    "Ranges",
    "A server should refuse values that are out of range.",
    "no action has bounds that can be exceeded",
    leniency="the protocol does not enforce ranges: a server should refuse, but need not",
)
def actions_out_of_range_are_refused(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send actions with one element below its minimum or above its maximum.

    A violation is a warning because only a faulty client sends an invalid action.
    """
    return _edges(field, beyond=True)


@_taken("Ranges", "Ranges are inclusive.", "no action has bounds", needs_any_value=True)
def actions_at_their_bounds_are_taken(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send actions with all elements at their minimum, then with all at their maximum.

    A violation is an error because a client that follows the specs cannot act.
    """
    return _edges(field, beyond=False)


@_taken(
    "Variable lengths",
    "A negative length follows from the number of elements.",
    "no action has a dimension",
    explained_by=(actions_at_their_bounds_are_taken,),
)
def a_negative_length_is_inferred(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send each action once per dimension, with -1 as the length of that dimension.

    A violation is an error because a client that follows the specs cannot act.
    """
    for axis in range(len(field.shape)):
        agent.run()
        tensor = agent.valid_actions().get(field.uid)
        if tensor is not None and 0 not in _shape(field):
            tensor.shape[axis] = -1
            yield tensor, f"has no given length along axis {axis}"


@_refused("Variable lengths", "At most one length may be negative.", "no action has two dimensions")
def two_negative_lengths_are_refused(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send each action with -1 as the length of two dimensions.

    A violation is a warning because only a faulty client sends an invalid action.
    """
    if len(field.shape) >= 2:
        agent.run()
        tensor = agent.valid_actions().get(field.uid, Tensor(shape=_shape(field)))
        tensor.shape[:2] = [-1, -1]
        yield tensor, "has two lengths that are not given"


@_taken(
    "Variable lengths",
    "A variable dimension has any length.",
    "no action has a variable dimension",
    explained_by=(actions_at_their_bounds_are_taken,),
    needs_any_value=True,
)
def a_variable_dimension_takes_any_length(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send actions with several lengths for a variable dimension.

    A violation is an error because a client that follows the specs cannot act.
    """
    for length in (1, 2, 7) if field.variable else ():
        shape = _shape(field, length)
        tensor = _filled(field, shape)
        if tensor is not None:
            yield tensor, f"may have shape {list(shape)}"


@_taken(
    "Broadcastable",
    "One element can represent a tensor of any shape.",
    "no action has a shape that one element can fill",
    explained_by=(actions_at_their_bounds_are_taken,),
    needs_any_value=True,
)
def one_element_is_broadcast(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send each action as a single element, but with the full shape.

    A violation is an error because a client that follows the specs cannot act.
    """
    shape = _shape(field)
    tensor = _filled(field, (1,))
    if tensor is not None and shape and np.prod(shape) > 1:
        tensor.shape[:] = shape
        yield tensor, "is one element that stands for all"


@_refused(
    "TensorSpec",
    "An action has the shape of its spec, also if its elements are messages.",
    "no action takes messages",
)
def messages_of_another_shape_are_refused(field: TensorField, agent: ProbeAgent) -> _Cases:
    """Send each action of type PROTO with one dimension too many.

    A violation is a warning because only a faulty client sends an invalid action.
    """
    if field.codec.data_type == dm_env_rpc_pb2.PROTO:
        tensor = Tensor(shape=(*_shape(field), 2))
        tensor.protos.array.extend([any_pb2.Any()] * int(np.prod(tensor.shape)))
        yield tensor, "has one dimension too many"
