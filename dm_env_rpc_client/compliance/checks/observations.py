"""Observations: exactly the requested ones, conforming to their specs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.checks.foundations import a_world_can_be_joined
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import describe
from dm_env_rpc_client.compliance.probe_agent import ProbeAgent
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors.spec_manager import TensorField

_of_steps = functools.partial(reference, "StepRequest/Response")

_STEPS = 12
"""The number of steps whose observations are checked."""


def _joined(trial: Trial) -> ProbeAgent:
    """Returns an agent; NotOfferedError if it has no observations."""
    agent = trial.join()
    if not agent.specs.observations:
        raise NotOfferedError("the environment has no observations")
    return agent


@_of_steps("If no observations are requested, none are returned.", needs=(a_world_can_be_joined,))
def nothing_is_returned_unless_requested(trial: Trial) -> None:
    """Requests nothing, in a first step and in later ones.

    An error: a client pays for what it did not ask for, or takes it for a broken answer.
    """
    agent = trial.join()
    for _ in range(3):
        agent.observe(())


@_of_steps(
    "The observations that are requested are returned.",
    needs=(a_world_can_be_joined,),
    otherwise="requested observations are not returned",
)
def what_is_requested_is_returned(trial: Trial) -> None:
    """Requests everything, in a first step and in later ones.

    An error: a client lacks an observation.
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
    """Requests one at a time, then all but one at a time.

    An error: a client lacks an observation, or gets one too many.
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
    """Requests everything twice over.

    A warning: the documents do not mention the case.
    """
    agent = _joined(trial)
    for _ in range(2):
        agent.observe(list(agent.specs.observations) * 2)


def _observed(trial: Trial) -> Iterator[tuple[ProbeAgent, TensorField, dm_env_rpc_pb2.Tensor]]:
    """Yields every observation of some steps, with a reset between them."""
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
    """Checks payload, number of elements and shape; a variable length can be any.

    An error: a client cannot unpack the observation.
    """
    for agent, field, tensor in _observed(trial):
        try:
            field.unpack(tensor)
        except SpecError as error:
            raise agent.probe.violation(
                f"a tensor for {describe(field.spec)}: {error}", tensor
            ) from None


@overview(
    "Ranges",
    "Ranges are inclusive, and tensors are in range.",
    needs=(what_is_requested_is_returned,),
)
def observations_are_within_their_bounds(trial: Trial) -> None:
    """Compares every element with the common bounds or with its own.

    An error: a client that validates refuses the observation, and others compute with it.
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
            raise agent.probe.violation(f"{field.label} from {minimum} to {maximum}", tensor)


def _floats(
    trial: Trial, lacking: str, is_meant: Callable[[TensorField], bool]
) -> Iterator[tuple[ProbeAgent, TensorField, np.ndarray, bool]]:
    """Yields floating point observations without bounds, to the end of a sequence and beyond.

    Those with bounds have a check of their own, which finds NaN too.

    Args:
      trial: the check.
      lacking: what the environment lacks if there are none.
      is_meant: whether the check is about an observation.

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
    """Looks for NaN after the first step of a sequence, which has no reward.

    An error: the return of the client's agent is NaN from there on. Infinity is a number.
    """
    for agent, field, value, is_first in _floats(
        trial, "no reward and no discount is a floating point number without bounds", _is_reward
    ):
        if not is_first:
            _check_is_number(agent, field, value)


@overview(
    "Ranges",
    "Elements are numbers, which a range can hold.",
    leniency="no document mentions NaN, and in some environments it stands for a missing value",
    needs=(what_is_requested_is_returned,),
)
def observations_without_bounds_are_numbers(trial: Trial) -> None:
    """Looks for NaN; where there is no bound, infinity is in range.

    A warning: a spec cannot say that there may be NaN, so a client does not expect it, but one that
    leaves out the element does not notice.
    """
    for agent, field, value, _ in _floats(
        trial,
        "no observation has floating point elements without bounds",
        lambda field: not _is_reward(field),
    ):
        _check_is_number(agent, field, value)
