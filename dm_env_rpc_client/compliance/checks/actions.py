"""Actions: those that conform to the specs are accepted, others are refused.

If the valid actions depend on the state of the environment, as moves in chess do, they need a
MODULE:FUNCTION policy. The checks that send any value within the specs are skipped then.

That a valid action is taken is an error if it does not hold, because a client that follows the
specs cannot act. That an invalid one is refused is a warning: such a client sends none, and the
documents leave the validity of requests to it ("Streaming"; on ranges "Ranges").
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import any_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.checks.foundations import (
    a_failed_request_is_answered,
    a_world_can_be_joined,
)
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe_agent import ProbeAgent
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.tensors import packing
from dm_env_rpc_client.tensors.spec_manager import TensorField

_STEP = "StepRequest/Response"
_of_invalid_actions = functools.partial(
    overview,
    leniency="a client that follows the specs sends no invalid actions",
    needs=(a_failed_request_is_answered,),
)
_MAX_ELEMENTS = 16
"""The number of elements of one action that are tried one by one."""

Tensor = dm_env_rpc_pb2.Tensor


def _joined(trial: Trial, needs_any_value: bool = False) -> ProbeAgent:
    """Returns an agent in a running sequence; NotOfferedError if it has no actions."""
    agent = trial.join()
    if not agent.specs.actions:
        raise NotOfferedError("the environment has no actions")
    if needs_any_value and trial.options.load_policy() is not None:
        raise NotOfferedError(
            "which actions are valid is said by the policy, not by the specs alone"
        )
    agent.run()
    return agent


def _with(valid: Mapping[int, Tensor], uid: int, tensor: Tensor) -> dict[int, Tensor]:
    return {**valid, uid: tensor}


def _refused(trial: Trial, agent: ProbeAgent, field: TensorField, tensor: Tensor, why: str) -> None:
    trial.recover(agent)
    agent.run()
    actions = _with(agent.valid_actions(), field.uid, tensor)
    agent.refuse_step(f"an error, because {field.label} {why}", actions)


def _taken(agent: ProbeAgent, field: TensorField, tensor: Tensor, why: str) -> None:
    agent.run()
    actions = _with(agent.valid_actions(), field.uid, tensor)
    agent.step(actions, expected=f"a StepResponse, because {field.label} {why}")


def _shape(field: TensorField, length: int = 2) -> tuple[int, ...]:
    """The shape with some length in place of a variable one."""
    return tuple(length if size < 0 else size for size in field.shape)


def _packed(field: TensorField, value: Any) -> Tensor:
    """Packs a value, which may be out of bounds."""
    array = np.asarray(value, field.codec.dtype)
    return packing.pack_array(array, field.codec, field.label)


def _pick(field: TensorField) -> Any:
    """Returns a scalar that is valid for every element; None if there is none.

    There is none for messages, because the suite does not know the environment's types.
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


@reference(
    _STEP,
    "Actions are optional: a step may have only some of them.",
    needs=(a_world_can_be_joined,),
)
def each_action_can_be_sent_alone(trial: Trial) -> None:
    """Sends one at a time; an environment that needs all of them may refuse.

    An error: a client that acts with some actions gets no answer, or a wrong one.
    """
    agent = _joined(trial)
    for uid in agent.valid_actions():
        agent.run()
        answer = agent.probe.ask(agent.request({uid: agent.valid_actions()[uid]}))
        if not isinstance(answer, dm_env_rpc_pb2.StepResponse):
            raise NotOfferedError(f"the environment needs all its actions: {answer.message}")
        agent.took(answer)


@reference(_STEP, "The set of actions may be empty.", needs=(a_world_can_be_joined,))
def a_step_may_be_empty(trial: Trial) -> None:
    """Steps without actions in a sequence; an environment that needs them may refuse.

    An error: a client that does not act gets no answer, or a wrong one.
    """
    agent = trial.join()
    agent.run()
    answer = agent.probe.ask(agent.request({}))
    if not isinstance(answer, dm_env_rpc_pb2.StepResponse):
        raise NotOfferedError(f"the environment needs its actions: {answer.message}")
    agent.took(answer)


@_of_invalid_actions("TensorSpec", "An action has the data type of its spec.")
def actions_of_another_type_are_refused(trial: Trial) -> None:
    """Sends elements of another type, for each action.

    A warning: only a client that makes a mistake sends it; see above.
    """
    agent = _joined(trial)
    for field in agent.actions.values():
        for other in ("doubles", "floats", "int64s", "strings"):
            if other != field.codec.field:
                tensor = Tensor(shape=_shape(field))
                element: Any = "0" if other == "strings" else _pick(field) or 0
                count = int(np.prod(_shape(field)))
                getattr(tensor, other).array.extend([_as(other, element)] * count)
                _refused(trial, agent, field, tensor, f"is {field.codec.field}, not {other}")


def _as(payload: str, element: Any) -> Any:
    if payload == "strings":
        return str(element)
    number = 0 if isinstance(element, str) or not np.isfinite(element) else element
    return int(np.clip(number, -(2**62), 2**62)) if payload == "int64s" else float(number)


@_of_invalid_actions("Tensors", "A tensor has a payload.")
def actions_without_payload_are_refused(trial: Trial) -> None:
    """Sends a shape without elements of any type.

    A warning: only a client that makes a mistake sends it; see above.
    """
    agent = _joined(trial)
    for field in agent.actions.values():
        _refused(trial, agent, field, Tensor(shape=_shape(field)), "has no payload")


@_of_invalid_actions("TensorSpec", "An action has the shape of its spec.")
def actions_of_another_shape_are_refused(trial: Trial) -> None:
    """Sends one dimension too many, and other lengths, for each action.

    A warning: only a client that makes a mistake sends it; see above.
    """
    agent = _joined(trial)
    for field in agent.actions.values():
        element = _pick(field)
        if element is None:
            continue
        shape = _shape(field)
        wrong = [(*shape, 1), (*shape, 2)]
        for axis, size in enumerate(field.shape):
            if size >= 0:
                wrong.append((*shape[:axis], size + 1, *shape[axis + 1 :]))
        for other in wrong:
            tensor = _packed(field, np.full(other, element, field.codec.dtype))
            _refused(
                trial, agent, field, tensor, f"has shape {list(field.shape)}, not {list(other)}"
            )


@_of_invalid_actions("Tensors", "The elements fill the shape.")
def actions_that_do_not_fill_their_shape_are_refused(trial: Trial) -> None:
    """Sends one element too many for each action.

    A warning: only a client that makes a mistake sends it; see above.
    """
    agent = _joined(trial)
    for field in agent.actions.values():
        element = _pick(field)
        if element is None:
            continue
        count = int(np.prod(_shape(field))) + 1
        tensor = _packed(field, np.full(max(count, 2), element, field.codec.dtype))
        tensor.shape[:] = _shape(field)
        _refused(trial, agent, field, tensor, f"has more elements than shape {list(field.shape)}")


def _edges(field: TensorField, beyond: bool) -> Iterator[tuple[Any, str]]:
    """Yields values at a bound, or with one element beyond it, and why they (do not) conform.

    If each element has its own bounds, the other elements are at theirs. A server that does not
    read them in row-major order would find such a value out of bounds.
    """
    shape = _shape(field)
    for side, bound in zip(("minimum", "maximum"), field.bounds, strict=True):
        if bound is None:
            continue
        other = field.bounds[0] if side == "minimum" else field.bounds[1]
        inside = np.broadcast_to(other, shape).astype(field.codec.dtype)
        if not np.all(np.isfinite(inside)):
            continue
        if not beyond:
            yield inside, f"is at its {side}, which is inclusive"
            continue
        indices = list(np.ndindex(*shape))
        if len(indices) > _MAX_ELEMENTS:
            indices = [*indices[: _MAX_ELEMENTS - 1], indices[-1]]
        for index in indices:
            outside = _beyond(inside[index], side == "minimum", field.codec.dtype)
            if outside is not None:
                value = inside.copy()
                value[index] = outside
                yield value, f"has element {list(index)} beyond its {side} {inside[index]}"


def _beyond(bound: Any, below: bool, dtype: np.dtype[Any]) -> Any:
    """Returns a value clearly out of bounds; None if the type has none."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        outside = int(bound) - 1 if below else int(bound) + 1
        return outside if info.min <= outside <= info.max else None
    margin = max(1.0, abs(float(bound)))
    outside_float = dtype.type(float(bound) - margin if below else float(bound) + margin)
    return outside_float if np.isfinite(outside_float) else None


@overview(
    "Ranges",
    "A server should refuse what is out of range.",
    leniency="the protocol does not enforce ranges: a server should refuse, but need not",
    needs=(a_failed_request_is_answered,),
)
def actions_out_of_range_are_refused(trial: Trial) -> None:
    """Puts each element in turn below its minimum and above its maximum.

    A warning: only a client that makes a mistake sends it; see above.
    """
    agent = _joined(trial)
    tried = False
    for field in agent.actions.values():
        if field.codec.is_numeric:
            for value, why in _edges(field, beyond=True):
                _refused(trial, agent, field, _packed(field, value), why)
                tried = True
    if not tried:
        raise NotOfferedError("no action has bounds that can be exceeded")


@overview(
    "Ranges",
    "Ranges are inclusive.",
    needs=(a_world_can_be_joined,),
)
def actions_at_their_bounds_are_taken(trial: Trial) -> None:
    """Puts every element at its minimum, then at its maximum.

    An error: a client that follows the specs cannot act.
    """
    agent = _joined(trial, needs_any_value=True)
    tried = False
    for field in agent.actions.values():
        if field.codec.is_numeric:
            for value, why in _edges(field, beyond=False):
                _taken(agent, field, _packed(field, value), why)
                tried = True
    if not tried:
        raise NotOfferedError("no action has bounds")


@overview(
    "Variable lengths",
    "A negative length follows from the number of elements.",
    needs=(a_world_can_be_joined,),
)
def a_negative_length_is_inferred(trial: Trial) -> None:
    """Sends each dimension of each action as -1 in turn.

    An error: a client that follows the specs cannot act.
    """
    agent = _joined(trial)
    tried = False
    for field in agent.actions.values():
        for axis in range(len(field.shape)):
            agent.run()
            valid = agent.valid_actions()
            if field.uid in valid and 0 not in _shape(field):
                valid[field.uid].shape[axis] = -1
                why = f"has its length along axis {axis} left open"
                _taken(agent, field, valid[field.uid], why)
                tried = True
    if not tried:
        raise NotOfferedError("no action has a dimension")


@_of_invalid_actions("Variable lengths", "At most one length may be negative.")
def two_negative_lengths_are_refused(trial: Trial) -> None:
    """Sends two dimensions of each action as -1.

    A warning: only a client that makes a mistake sends it; see above.
    """
    agent = _joined(trial)
    tried = False
    for field in agent.actions.values():
        if len(field.shape) >= 2:
            agent.run()
            tensor = agent.valid_actions().get(field.uid, Tensor(shape=_shape(field)))
            tensor.shape[:2] = [-1, -1]
            _refused(trial, agent, field, tensor, "has two lengths left open")
            tried = True
    if not tried:
        raise NotOfferedError("no action has two dimensions")


@overview(
    "Variable lengths", "A variable dimension has any length.", needs=(a_world_can_be_joined,)
)
def a_variable_dimension_takes_any_length(trial: Trial) -> None:
    """Sends several lengths for a dimension of -1.

    An error: a client that follows the specs cannot act.
    """
    agent = _joined(trial, needs_any_value=True)
    tried = False
    for field in agent.actions.values():
        element = _pick(field)
        if element is not None and field.variable:
            for length in (1, 2, 7):
                shape = _shape(field, length)
                tensor = _packed(field, np.full(shape, element, field.codec.dtype))
                _taken(agent, field, tensor, f"may have shape {list(shape)}")
                tried = True
    if not tried:
        raise NotOfferedError("no action has a variable dimension")


@overview(
    "Broadcastable",
    "One element can represent a tensor of any shape.",
    needs=(a_world_can_be_joined,),
)
def one_element_is_broadcast(trial: Trial) -> None:
    """Sends one element with the whole shape.

    An error: a client that follows the specs cannot act.
    """
    agent = _joined(trial, needs_any_value=True)
    tried = False
    for field in agent.actions.values():
        element = _pick(field)
        shape = _shape(field)
        if element is not None and shape and np.prod(shape) > 1:
            tensor = _packed(field, np.full((1,), element, field.codec.dtype))
            tensor.shape[:] = shape
            _taken(agent, field, tensor, "is one element for all of them")
            tried = True
    if not tried:
        raise NotOfferedError("no action has a shape that one element can fill")


@_of_invalid_actions(
    "TensorSpec", "An action has the shape of its spec, also if its elements are messages."
)
def messages_of_another_shape_are_refused(trial: Trial) -> None:
    """Sends one dimension too many, for each action of messages.

    A warning: only a client that makes a mistake sends it; see above.
    """
    agent = _joined(trial)
    protos = [f for f in agent.actions.values() if f.codec.data_type == dm_env_rpc_pb2.PROTO]
    if not protos:
        raise NotOfferedError("no action takes messages")
    for field in protos:
        tensor = Tensor(shape=(*_shape(field), 2))
        tensor.protos.array.extend([any_pb2.Any()] * int(np.prod(tensor.shape)))
        _refused(trial, agent, field, tensor, "has a dimension too many")
