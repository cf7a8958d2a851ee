"""Observations: exactly the requested ones, conforming to their specs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import describe
from dm_env_rpc_client.compliance.probe_agent import ProbeAgent, unknown_uid
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.spec_manager import TensorField

_STEP = "StepRequest/Response"
_STEPS = 12
"""The number of steps whose observations are checked."""


def _joined(trial: Trial) -> ProbeAgent:
    """Returns an agent; NotOfferedError if it has no observations."""
    agent = trial.join()
    if not agent.specs.observations:
        raise NotOfferedError("the environment has no observations")
    return agent


def _check_uids(
    agent: ProbeAgent, response: dm_env_rpc_pb2.StepResponse, requested: Iterable[int]
) -> None:
    if set(response.observations) != set(requested):
        raise agent.probe.violation(
            f"observations {sorted(set(requested))}, no more and no less", describe(response)
        )


@reference(_STEP, "If no observations are requested, none are returned.")
def nothing_is_returned_unless_requested(trial: Trial) -> None:
    """Requests nothing, in a first step and in later ones."""
    agent = trial.join()
    for _ in range(3):
        _check_uids(agent, agent.step(), ())


@reference(_STEP, "The observations that are requested are returned.")
def what_is_requested_is_returned(trial: Trial) -> None:
    """Requests everything, in a first step and in later ones."""
    agent = _joined(trial)
    for _ in range(_STEPS):
        uids = agent.specs.observations
        _check_uids(agent, agent.step(requested=uids), uids)


@reference(_STEP, "Any set of observations can be requested.")
def each_observation_can_be_requested_alone(trial: Trial) -> None:
    """Requests one at a time, then all but one at a time."""
    agent = _joined(trial)
    uids = sorted(agent.specs.observations)
    for uid in uids:
        _check_uids(agent, agent.step(requested=[uid]), [uid])
    for left_out in uids:
        rest = [uid for uid in uids if uid != left_out]
        _check_uids(agent, agent.step(requested=rest), rest)


@reference(_STEP, "Requesting an observation twice is the same as requesting it once.")
def duplicate_requests_are_redundant(trial: Trial) -> None:
    """Requests everything twice over."""
    agent = _joined(trial)
    uids = list(agent.specs.observations)
    for _ in range(2):
        _check_uids(agent, agent.step(requested=uids * 2), uids)


@reference("Specs", "The specs are a complete list of what can be requested.")
def unknown_observations_are_refused(trial: Trial) -> None:
    """Requests an unknown UID, alone and among others."""
    agent = trial.join()
    uids = sorted(agent.specs.observations)
    unknown = unknown_uid(uids)
    agent.step()
    for requested in ([unknown], [*uids, unknown], [2**64 - 1]):
        agent.refuse_step("an error, because there is no such observation", requested=requested)


def _check_values(
    trial: Trial, check: Callable[[ProbeAgent, TensorField, dm_env_rpc_pb2.Tensor], None]
) -> None:
    """Runs `check` on every observation of some steps, with a reset between them."""
    agent = _joined(trial)
    for number in range(_STEPS):
        if number == _STEPS - 2:
            agent.reset_if_offered()
        response = agent.step(requested=agent.specs.observations)
        fields = agent.observations
        _check_uids(agent, response, fields)
        for uid, tensor in response.observations.items():
            check(agent, fields[uid], tensor)


@reference(_STEP, "Observations have the shape and the data type of their spec.")
def observations_have_the_shape_and_type_of_their_specs(trial: Trial) -> None:
    """Checks payload, number of elements and shape; a variable length can be any."""

    def check(agent: ProbeAgent, field: TensorField, tensor: dm_env_rpc_pb2.Tensor) -> None:
        try:
            field.unpack(tensor)
        except SpecError as error:
            raise agent.probe.violation(
                f"a tensor for {describe(field.spec)}: {error}", describe(tensor)
            ) from None

    _check_values(trial, check)


@overview("Ranges", "Ranges are inclusive, and tensors are in range.")
def observations_are_within_their_bounds(trial: Trial) -> None:
    """Compares every element with the common bounds or with its own."""

    def check(agent: ProbeAgent, field: TensorField, tensor: dm_env_rpc_pb2.Tensor) -> None:
        minimum, maximum = field.bounds
        if minimum is None and maximum is None:
            return
        try:
            value = field.unpack(tensor)
        except SpecError:
            return  # Another check reports it.
        fits = (minimum is None or np.all(value >= minimum)) and (
            maximum is None or np.all(value <= maximum)
        )
        if not fits:
            raise agent.probe.violation(
                f"{field.label} from {minimum} to {maximum}", describe(tensor)
            )

    _check_values(trial, check)
