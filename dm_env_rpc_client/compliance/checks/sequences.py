"""States: how sequences begin, continue and end, and the effect of a Reset."""

from __future__ import annotations

import functools

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.checks.actions import actions_at_their_bounds_are_taken
from dm_env_rpc_client.compliance.checks.foundations import (
    a_failed_request_is_answered,
    a_reset_is_taken,
    a_world_can_be_joined,
)
from dm_env_rpc_client.compliance.checks.observations import what_is_requested_is_returned
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import describe
from dm_env_rpc_client.compliance.probe_agent import ProbeAgent
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.protocol import lifecycle
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors.settings import pack_settings

_of_states = functools.partial(overview, "States")
_of_steps = functools.partial(reference, "StepRequest/Response")

_RESET = "ResetRequest/Response"
_NEEDS = (a_world_can_be_joined, a_reset_is_taken)
_of_resets = functools.partial(reference, _RESET, needs=_NEEDS)
_WINDOW = 8
"""The number of steps that are pending at once."""


@_of_steps(
    "The actions of a first step are ignored, so it may have valid ones.",
    needs=(a_world_can_be_joined,),
    otherwise="a first step with actions is refused",
)
def a_first_step_may_have_actions(trial: Trial) -> None:
    """Begins a sequence with valid actions.

    An error: a client that sends steps ahead does not know which of them is a first step.
    """
    agent = trial.join()
    if trial.options.load_policy() is not None:
        raise NotOfferedError("the policy chooses actions for the steps of a sequence only")
    agent.step(agent.valid_actions(), expected="a first step whose actions are ignored")


@_of_states("Each state leads to some states only.", needs=(a_world_can_be_joined,))
def states_follow_each_other(trial: Trial) -> None:
    """Steps to the end of a sequence and into the next.

    An error: a client loses count of its sequences.
    """
    agent = trial.join()
    if not agent.run_to_the_end():
        raise NotOfferedError(_endless(trial))
    agent.begin("a first step after the end of a sequence, whose actions are ignored")
    agent.check_is_running("a sequence has begun")


def _endless(trial: Trial) -> str:
    return f"no sequence ended within {trial.options.max_steps} steps"


@_of_steps(
    "The last step of a sequence returns observations too.", needs=(what_is_requested_is_returned,)
)
def the_last_step_returns_observations(trial: Trial) -> None:
    """Requests everything in each step until the end.

    An error: a client lacks the observations of the end.
    """
    agent = trial.run()
    for _ in range(trial.options.max_steps):
        agent.observe()
        if agent.state is not State.RUNNING:
            return
    raise NotOfferedError(_endless(trial))


@_of_steps(
    "Pending steps may be processed in the next sequence.",
    needs=(a_first_step_may_have_actions,),
    explained_by=(actions_at_their_bounds_are_taken, states_follow_each_other),
)
def sequences_end_and_begin_while_steps_are_in_flight(trial: Trial) -> None:
    """Keeps several steps pending beyond the end of a sequence.

    An error: a client that sends steps ahead gets wrong answers, or none.
    """
    agent = trial.join()
    ends = 0
    sent = answered = 0
    while answered < sent or (ends < 2 and sent < trial.options.max_steps):
        if sent - answered < _WINDOW and ends < 2 and sent < trial.options.max_steps:
            agent.probe.send(agent.request(agent.valid_actions()))
            sent += 1
            continue
        agent.took(agent.probe.accepted("step", "a StepResponse, in this sequence or the next"))
        answered += 1
        ends += agent.state is not State.RUNNING
    if not ends:
        raise NotOfferedError(_endless(trial))


@_of_resets("After a Reset the next step begins a sequence; its actions are ignored.")
def a_reset_ends_the_sequence(trial: Trial) -> None:
    """Resets in the middle of a sequence.

    An error: the agent continues a sequence that it takes for ended.
    """
    agent = trial.run()
    agent.reset()
    agent.begin("a first step after the Reset, whose actions are ignored")
    agent.check_is_running("the sequence after the Reset has begun")


@_of_resets(
    "A pending Reset takes effect between the steps around it.",
    needs=(*_NEEDS, a_reset_ends_the_sequence),
    explained_by=(actions_at_their_bounds_are_taken,),
)
def a_reset_in_flight_ends_the_sequence(trial: Trial) -> None:
    """Sends a step, a Reset and a first step without waiting.

    An error: a client that sends requests ahead gets wrong answers, or none.
    """
    agent = trial.run()
    reset = dm_env_rpc_pb2.ResetRequest(settings=pack_settings(trial.options.reset_settings))
    for request in (agent.request(), reset, agent.request(agent.first_actions())):
        agent.probe.send(request)
    agent.probe.accepted("step", "a StepResponse before the Reset")
    refusal = None
    try:
        agent.adopt(agent.probe.accepted("reset", "a ResetResponse").specs)
    except NotOfferedError as error:
        if not trial.facts.survives_errors:
            raise
        refusal = error
    last = agent.probe.answer("step", "the answer to the last step")
    if refusal is not None:
        raise refusal
    agent.was_reset()
    if not isinstance(last, dm_env_rpc_pb2.StepResponse):
        raise agent.probe.violation(
            "a first step, because it follows a Reset; its actions are ignored", last
        )
    agent.took(last)


def _check_same(agent: ProbeAgent, before: dm_env_rpc_pb2.ActionObservationSpecs) -> None:
    if agent.specs != before:
        raise agent.probe.violation(f"the same specs as before: {describe(before)}", agent.specs)


@_of_resets("The specs are sent again even if nothing has changed.")
def a_reset_sends_the_specs_again(trial: Trial) -> None:
    """Resets in a sequence and between two; the sent specs must be valid for the next steps.

    An error: a client takes the specs of the answer for those that hold now.
    """
    agent = trial.join()
    joined = agent.specs
    agent.reset()
    agent.begin("a first step")
    agent.reset()
    for kind in ("actions", "observations"):
        if getattr(joined, kind) and not getattr(agent.specs, kind):
            raise agent.probe.violation(f"specs of {kind}", agent.specs)
    if not trial.options.reset_settings:
        _check_same(agent, joined)
    agent.step(requested=agent.observations, expected="a step with the specs of the Reset")
    agent.step(requested=agent.observations, expected="a step with the specs of the Reset")


@_of_resets(
    "A Reset without settings is a no-op while no sequence is running.",
    needs=(*_NEEDS, a_reset_ends_the_sequence, a_reset_sends_the_specs_again),
)
def a_reset_between_sequences_changes_nothing(trial: Trial) -> None:
    """Resets twice before the first sequence and twice after a Reset.

    An error: a client that resets twice has other specs than the server, or another sequence.
    """
    agent = trial.join()
    joined = agent.specs
    for _ in range(2):
        agent.reset({})
        _check_same(agent, joined)
    agent.begin("a first step after Resets that changed nothing")
    agent.reset({})
    between = agent.specs
    for _ in range(2):
        agent.reset({})
        _check_same(agent, between)
    agent.begin("a first step after Resets that changed nothing")
    agent.check_is_running("a sequence has begun")


@_of_resets("Settings of a Reset are those for the agent's next sequence.")
def reset_settings_are_taken(trial: Trial) -> None:
    """Resets with them in a sequence and between two, and steps with the new specs.

    An error: the options promise that they are accepted.
    """
    if not trial.options.reset_settings:
        raise NotOfferedError("no reset settings were given")
    agent = trial.join()
    agent.reset()
    agent.step(requested=agent.observations)
    agent.reset()
    agent.reset()
    agent.step(requested=agent.observations)
    agent.step(requested=agent.observations)


@reference(_RESET, "Invalid settings are refused.", needs=(a_failed_request_is_answered,))
def invalid_reset_settings_are_refused(trial: Trial) -> None:
    """Sends each one; the sequence continues, if errors are no-ops.

    An error: the options promise it.
    """
    invalid = trial.invalid_settings("reset")
    agent = trial.join()
    for name, tensor in invalid.items():
        trial.recover(agent)
        agent.run()
        request = dm_env_rpc_pb2.ResetRequest(settings={name: tensor})
        agent.probe.refuse(request, f"an error, because the setting {name!r} is invalid")
        if trial.facts.errors_are_no_ops:
            agent.check_is_running("the refused Reset did not end the sequence")


@_of_states("A joined agent has one of three states after a step.", needs=(a_world_can_be_joined,))
def states_are_those_of_the_protocol(trial: Trial) -> None:
    """Checks the number of the state in each of some steps.

    An error: a client does not know whether its sequence continues.
    """
    agent = trial.join()
    for _ in range(min(trial.options.max_steps, 24)):
        before = agent.state
        response = agent.step()
        allowed = {state.number for state in lifecycle.next_states(before, "step")}
        if response.state not in allowed:
            raise agent.probe.violation(f"one of the states {allowed}", response)
