"""Checks that specs are usable, and that observations are as requested and as specified."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.checks.foundations import a_world_can_be_joined
from dm_env_rpc_client.compliance.outcome import NotOfferedError, ViolationError
from dm_env_rpc_client.compliance.probe import ProbeAgent, describe
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors import nesting, specs
from dm_env_rpc_client.tensors.spec_manager import TensorField

_of_specs = functools.partial(reference, "Specs")

_DATA_TYPES = {*dm_env_rpc_pb2.DataType.values()} - {dm_env_rpc_pb2.INVALID_DATA_TYPE}

_SpecsByKind = Iterator[tuple[str, list[dm_env_rpc_pb2.TensorSpec]]]


def _by_kind(trial: Trial) -> _SpecsByKind:
    joined = trial.join().specs
    yield "action", [joined.actions[uid] for uid in sorted(joined.actions)]
    yield "observation", [joined.observations[uid] for uid in sorted(joined.observations)]


def _violation(expected: str, received: str) -> ViolationError:
    return ViolationError(expected, "JoinWorldRequest", received)


def _check_each(
    trial: Trial, expected: str, is_right: Callable[[dm_env_rpc_pb2.TensorSpec], bool]
) -> None:
    for kind, group in _by_kind(trial):
        for spec in group:
            if not is_right(spec):
                raise _violation(expected, f"{kind} {describe(spec)}")


@_of_specs("Action names are unique, and so are observation names.")
def names_are_unique(trial: Trial) -> None:
    """Check that no name occurs twice among actions or among observations.

    A violation is an error because a client that uses names as keys loses one of two values with
    the same name.
    """
    for kind, group in _by_kind(trial):
        names = [spec.name for spec in group]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise _violation(f"{kind}s with unique names", f"{kind} {twice[0]!r} twice")


@overview("Nested actions or observations", "A period in a name is a level of nesting only.")
def no_name_is_the_parent_of_another(trial: Trial) -> None:
    """Check that no name is the parent of another, as `a` is the parent of `a.b`.

    A violation is an error because a client that nests values by name cannot represent both.
    """
    for kind, group in _by_kind(trial):
        try:
            nesting.check_unambiguous(spec.name for spec in group)
        except SpecError as error:
            names = ", ".join(repr(spec.name) for spec in group)
            raise _violation(
                f"{kind} names, none of which is the parent of another: {error}", names
            ) from None


@overview("TensorSpec", "A spec has a data type of the protocol.")
def data_types_are_valid(trial: Trial) -> None:
    """Check that each data type is defined by the protocol and is not 0.

    A violation is an error because a client cannot pack or unpack the tensor.
    """
    _check_each(trial, "a data type of the protocol", lambda spec: spec.dtype in _DATA_TYPES)


@overview("Variable lengths", "At most one dimension of a tensor is variable.")
def at_most_one_dimension_is_variable(trial: Trial) -> None:
    """Check that each shape has at most one negative element.

    A violation is an error because a client cannot infer the shape.
    """
    _check_each(
        trial,
        "at most one negative element in the shape",
        lambda spec: sum(size < 0 for size in spec.shape) <= 1,
    )


@overview("Ranges", "A range has one element, or the shape of its tensor, and can be met.")
def bounds_make_sense(trial: Trial) -> None:
    """Check the type, number and order of all bounds, and check that no bound is NaN.

    A violation is an error because no value conforms to the spec, or a client cannot know which
    values do.
    """
    for kind, group in _by_kind(trial):
        for spec in group:
            if spec.dtype not in _DATA_TYPES or sum(size < 0 for size in spec.shape) > 1:
                continue  # Another check reports it; here it would only hide the bounds.
            try:
                specs.check_spec(spec, f"{kind} {spec.name!r}")
            except SpecError as error:
                raise _violation(f"valid bounds ({error})", describe(spec)) from None


@_of_specs(
    "The specs tell the client which values it can send.",
    needs=(
        names_are_unique,
        no_name_is_the_parent_of_another,
        data_types_are_valid,
        at_most_one_dimension_is_variable,
        bounds_make_sense,
    ),
)
def the_specs_can_be_used(trial: Trial) -> None:
    """Check that a valid value can be chosen for each action, as later checks require.

    A violation is an error because a client cannot act.
    """
    agent = trial.join()
    try:
        agent.valid_actions()
        len(agent.observations)
    except NotOfferedError as error:
        raise _violation(f"specs with valid values ({error})", describe(agent.specs)) from None


_of_steps = functools.partial(reference, "StepRequest/Response")

_STEPS = 12
"""The number of steps whose observations are checked."""


def _joined(trial: Trial) -> ProbeAgent:
    """Return an agent, or raise NotOfferedError if it has no observations."""
    agent = trial.join()
    if not agent.specs.observations:
        raise NotOfferedError("the environment has no observations")
    return agent


@_of_steps("If no observations are requested, none are returned.", needs=(a_world_can_be_joined,))
def nothing_is_returned_unless_requested(trial: Trial) -> None:
    """Request no observations in a first step and in later steps.

    A violation is an error because a client receives data that it did not request, or considers the
    answer invalid.
    """
    agent = trial.join()
    for _ in range(3):
        agent.observe(())


@_of_steps(
    "The requested observations are returned.",
    needs=(a_world_can_be_joined,),
    otherwise="requested observations are not returned",
)
def what_is_requested_is_returned(trial: Trial) -> None:
    """Request all observations in a first step and in later steps.

    A violation is an error because a client lacks an observation.
    """
    agent = _joined(trial)
    for _ in range(_STEPS):
        response = agent.step(requested=agent.specs.observations)
        if agent.state is State.RUNNING:  # Another check looks at the last step.
            agent.check_observations(response, agent.specs.observations)


@_of_steps(
    "Any set of observations can be requested.",
    needs=(nothing_is_returned_unless_requested, what_is_requested_is_returned),
)
def each_observation_can_be_requested_alone(trial: Trial) -> None:
    """Request each observation alone, then every set that leaves out one observation.

    A violation is an error because a client lacks an observation, or gets an observation that it
    did not request.
    """
    agent = _joined(trial)
    uids = sorted(agent.specs.observations)
    for uid in uids:
        agent.observe([uid])
    for left_out in uids:
        agent.observe([uid for uid in uids if uid != left_out])


@_of_steps(
    "Requesting an observation twice is the same as requesting it once.",
    leniency="a client has no reason to request an observation twice",
    needs=(what_is_requested_is_returned,),
)
def duplicate_requests_are_redundant(trial: Trial) -> None:
    """Request each observation twice in the same step.

    A violation is a warning because the documents do not mention duplicate requests.
    """
    agent = _joined(trial)
    for _ in range(2):
        agent.observe(list(agent.specs.observations) * 2)


def _observed(trial: Trial) -> Iterator[tuple[ProbeAgent, TensorField, dm_env_rpc_pb2.Tensor]]:
    """Yield every observation from several steps, with a reset before one of the steps."""
    agent = _joined(trial)
    for number in range(_STEPS):
        if number == _STEPS - 2:
            agent.reset_if_offered()
            trial.recover(agent)
        response = agent.step(requested=agent.specs.observations)
        fields = agent.observations
        for uid, tensor in response.observations.items():
            if uid in fields:
                yield agent, fields[uid], tensor


@_of_steps(
    "Observations have the shape and the data type of their spec.",
    needs=(what_is_requested_is_returned,),
)
def observations_have_the_shape_and_type_of_their_specs(trial: Trial) -> None:
    """Check the data type, the number of elements and the shape of each observation.

    A violation is an error because a client cannot unpack the observation.
    """
    for agent, field, tensor in _observed(trial):
        try:
            field.unpack(tensor)
        except SpecError as error:
            raise agent.probe.violation(
                f"a tensor that conforms to {describe(field.spec)}: {error}", tensor
            ) from None


@overview(
    "Ranges",
    "Ranges are inclusive, and tensors are in range.",
    needs=(what_is_requested_is_returned,),
)
def observations_are_within_their_bounds(trial: Trial) -> None:
    """Check that every element of each observation is within its bounds.

    A violation is an error because a client that validates observations rejects it, and other
    clients use a wrong value.
    """
    for agent, field, tensor in _observed(trial):
        minimum, maximum = field.bounds
        if minimum is None and maximum is None:
            continue
        try:
            value = field.unpack(tensor)
        except SpecError:
            continue  # Another check reports it.
        fits = (minimum is None or np.all(value >= minimum)) and (
            maximum is None or np.all(value <= maximum)
        )
        if not fits:
            raise agent.probe.violation(
                f"{field.label} with all elements from {minimum} to {maximum}", tensor
            )


def _floats(
    trial: Trial, lacking: str, is_meant: Callable[[TensorField], bool]
) -> Iterator[tuple[ProbeAgent, TensorField, np.ndarray, bool]]:
    """Yield unbounded floating-point observations from more than one sequence.

    Another check covers bounded observations, including NaN.

    Args:
      trial: the check.
      lacking: the reason for skipping the check if there are no such observations.
      is_meant: whether the check applies to an observation.

    Yields:
      The agent, the observation, its value, and whether the step was the first of a sequence.
    """
    agent = trial.join()
    fields = {
        uid: field
        for uid, field in agent.observations.items()
        if field.codec.dtype.kind == "f" and _is_unbounded(field) and is_meant(field)
    }
    if not fields:
        raise NotOfferedError(lacking)
    for number in range(max(_STEPS, trial.options.max_steps)):
        is_first = agent.state is not State.RUNNING
        step = agent.step(requested=list(fields))
        for uid, tensor in step.observations.items():
            if uid in fields:
                try:
                    value = np.asarray(fields[uid].unpack(tensor))
                except SpecError:
                    continue  # Another check reports it.
                yield agent, fields[uid], value, is_first
        if number >= _STEPS and agent.state is not State.RUNNING:
            break


def _is_unbounded(field: TensorField) -> bool:
    return all(bound is None for bound in field.bounds)


def _is_reward(field: TensorField) -> bool:
    return field.name in ("reward", "discount")


def _check_is_number(agent: ProbeAgent, field: TensorField, value: np.ndarray) -> None:
    if np.any(np.isnan(value)):
        index = np.argwhere(np.isnan(value))[0].tolist()
        where = f" in element {index}" if index else ""
        raise agent.probe.violation(f"{field.label} without NaN", f"{field.label} with NaN{where}")


@overview(
    "Reward and discount",
    "A server provides a sensible reward and discount, or none.",
    needs=(what_is_requested_is_returned,),
)
def rewards_and_discounts_are_numbers(trial: Trial) -> None:
    """Check that rewards and discounts after the first step of a sequence are not NaN.

    A violation is an error because from then on, the return of the client's agent is NaN. Infinity
    is a number.
    """
    for agent, field, value, is_first in _floats(
        trial, "no reward and no discount is a floating point number without bounds", _is_reward
    ):
        if not is_first:
            _check_is_number(agent, field, value)


@overview(
    "Ranges",
    "Elements are numbers, which a range can contain.",
    leniency="no document mentions NaN, and in some environments it stands for a missing value",
    needs=(what_is_requested_is_returned,),
)
def observations_without_bounds_are_numbers(trial: Trial) -> None:
    """Check that observations without bounds are not NaN. Infinity is allowed.

    A violation is a warning because a spec cannot announce NaN, so clients do not expect it. A
    client that does not use the element is not affected.
    """
    for agent, field, value, _ in _floats(
        trial,
        "no observation has floating point elements without bounds",
        lambda field: not _is_reward(field),
    ):
        _check_is_number(agent, field, value)
