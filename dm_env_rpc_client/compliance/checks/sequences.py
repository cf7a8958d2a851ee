"""Checks of how sequences begin, continue and end, including ends caused by Reset or ResetWorld."""

from __future__ import annotations

import functools

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.checks.actions import actions_at_their_bounds_are_taken
from dm_env_rpc_client.compliance.checks.foundations import (
    a_failed_request_is_answered,
    a_reset_is_taken,
    a_reset_world_is_taken,
    a_world_can_be_joined,
)
from dm_env_rpc_client.compliance.checks.observations import what_is_requested_is_returned
from dm_env_rpc_client.compliance.checks.world_independence import (
    agents_of_one_world_have_their_own_states,
)
from dm_env_rpc_client.compliance.checks.worlds import (
    UNKNOWN_IS_NOT_MENTIONED,
    a_world_can_be_joined_from_another_connection,
    refuse_unknown_setting,
    unknown_join_settings_are_refused,
)
from dm_env_rpc_client.compliance.outcome import NotOfferedError, Takes
from dm_env_rpc_client.compliance.probe import Probe, ProbeAgent, describe, step_together
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.protocol import lifecycle
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors.settings import pack_settings

_of_states = functools.partial(overview, "States")
_of_steps = functools.partial(reference, "StepRequest/Response")

_RESET = "ResetRequest/Response"
_of_resets = functools.partial(reference, _RESET, needs=(a_world_can_be_joined, a_reset_is_taken))
_WINDOW = 8
"""The number of steps that are pending at once."""


@_of_steps(
    "The actions of a first step are ignored, so it may have valid ones.",
    needs=(a_world_can_be_joined,),
    otherwise="a first step with actions is refused",
)
def a_first_step_may_have_actions(trial: Trial) -> None:
    """Begin a sequence with valid actions.

    A violation is an error because a client that sends steps ahead does not know which one is a
    first step.
    """
    agent = trial.join()
    if trial.options.load_policy() is not None:
        raise NotOfferedError("the policy chooses actions only for steps within a sequence")
    agent.step(agent.valid_actions(), expected="a first step, regardless of the actions sent")


@_of_states("Each state can be followed only by certain states.", needs=(a_world_can_be_joined,))
def states_follow_each_other(trial: Trial) -> None:
    """Step to the end of a sequence and into the next sequence.

    A violation is an error because a client loses count of its sequences.
    """
    agent = trial.join()
    if not agent.run_to_the_end():
        raise NotOfferedError(_endless(trial))
    agent.begin("a first step after the end of a sequence, regardless of the actions sent")
    agent.check_is_running("a sequence has begun")


def _endless(trial: Trial) -> str:
    return f"no sequence ended within {trial.options.max_steps} steps"


@_of_steps(
    "The last step of a sequence returns observations too.", needs=(what_is_requested_is_returned,)
)
def the_last_step_returns_observations(trial: Trial) -> None:
    """Request all observations in each step until the end of a sequence.

    A violation is an error because a client lacks the final observations.
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
    """Keep several steps pending while a sequence ends and the next one begins.

    A violation is an error because a client that sends steps ahead gets wrong answers or no
    answers.
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
    """Reset in the middle of a sequence.

    A violation is an error because the agent is still in a sequence that it considers ended.
    """
    agent = trial.run()
    agent.reset()
    agent.begin("a first step after the Reset, regardless of the actions sent")
    agent.check_is_running("the sequence after the Reset has begun")


@_of_resets(
    "A pending Reset takes effect between the steps around it.",
    needs=(a_reset_ends_the_sequence,),
    explained_by=(actions_at_their_bounds_are_taken,),
)
def a_reset_in_flight_ends_the_sequence(trial: Trial) -> None:
    """Send a step, a Reset and a first step without waiting for answers.

    A violation is an error because a client that sends requests ahead gets wrong answers or no
    answers.
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
            "a first step after the Reset, regardless of the actions sent", last
        )
    agent.took(last)


def _check_same(agent: ProbeAgent, before: dm_env_rpc_pb2.ActionObservationSpecs) -> None:
    if agent.specs != before:
        raise agent.probe.violation(f"the same specs as before: {describe(before)}", agent.specs)


@_of_resets("The specs are sent again even if nothing has changed.")
def a_reset_sends_the_specs_again(trial: Trial) -> None:
    """Reset during a sequence and between sequences, and take steps with the returned specs.

    A violation is an error because a client uses the specs of the answer for all later steps.
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
    needs=(a_reset_ends_the_sequence, a_reset_sends_the_specs_again),
)
def a_reset_between_sequences_changes_nothing(trial: Trial) -> None:
    """Send two Resets before the first sequence, and two more directly after a Reset.

    A violation is an error because after two Resets, the specs or the sequence of the client differ
    from those of the server.
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


@_of_resets("The settings of a Reset are for the agent's next sequence.")
def reset_settings_are_taken(trial: Trial) -> None:
    """Reset with settings during and between sequences, and take steps with the new specs.

    A violation is an error because the options state that the server accepts these settings.
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
    """Send a Reset with each invalid setting, which the server must refuse.

    A violation is an error because the options state that the server refuses these settings.
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


@_of_resets(
    "The settings of a Reset are for the agent's next sequence.",
    leniency=UNKNOWN_IS_NOT_MENTIONED,
    explained_by=(invalid_reset_settings_are_refused, unknown_join_settings_are_refused),
)
def unknown_reset_settings_are_refused(trial: Trial) -> None:
    """Send a Reset with the configured settings and an unknown one.

    A violation is a warning because the documents do not mention unknown settings. A client that
    misspells a setting is not told that it has no effect.
    """
    settings = pack_settings(trial.options.reset_settings)
    request = dm_env_rpc_pb2.ResetRequest(settings=settings)
    refuse_unknown_setting(trial.join().probe, request)


@_of_states("A joined agent has one of three states after a step.", needs=(a_world_can_be_joined,))
def states_are_those_of_the_protocol(trial: Trial) -> None:
    """Check that each of several steps returns a state number that the protocol allows.

    A violation is an error because a client does not know whether its sequence continues.
    """
    agent = trial.join()
    for _ in range(min(trial.options.max_steps, 24)):
        before = agent.state
        response = agent.step()
        allowed = {state.number for state in lifecycle.next_states(before, "step")}
        if response.state not in allowed:
            raise agent.probe.violation(f"one of the states {allowed}", response)


_of_world_resets = functools.partial(reference, "ResetWorldRequest/Response")

_TOLD_WITHIN = 5
"""The number of steps within which an agent must learn that another connection reset its world."""


@_of_world_resets(
    "The name selects the world to reset.",
    leniency="no world is affected, and a client that knows its world names it",
    needs=(a_failed_request_is_answered,),
)
def an_unknown_world_cannot_be_reset(trial: Trial) -> None:
    """Try to reset a nonexistent world.

    A violation is a warning because nothing is reset, and the documents do not mention unknown
    worlds.
    """
    request = trial.reset_world_request(trial.options.unknown_world_name)
    trial.connect().refuse(request, "an error, because there is no such world")


@_of_world_resets(
    "A ResetWorld need not come from a joined connection.",
    needs=(a_world_can_be_joined, a_reset_world_is_taken),
)
def a_spectator_resets_a_world_without_agents(trial: Trial) -> None:
    """Reset a world that no agent has joined yet, then join it and begin a sequence.

    A violation is an error because a client that manages worlds cannot reset them.
    """
    probe = trial.connect()
    name = trial.create_world(probe)
    probe.accept(
        trial.reset_world_request(name), "a ResetWorldResponse, because no agent is in a sequence"
    )
    trial.join(probe, name).begin("a first step in the world that was reset")


@_of_world_resets(
    "The agent that resets the world begins the next sequence at once.",
    needs=(a_world_can_be_joined, a_reset_world_is_taken),
)
def an_agent_resets_its_world(trial: Trial) -> None:
    """Reset the world before a sequence and during two others, and expect no INTERRUPTED step.

    A violation is an error because the agent mistakes the end of the old sequence for a step of the
    new sequence.
    """
    agent = trial.join()
    request = trial.reset_world_request(agent.world_name)
    agent.probe.accept(request, "a ResetWorldResponse")
    for _ in range(2):
        agent.begin("a first step, at once and with its actions ignored")
        agent.step()
        agent.probe.accept(request, "a ResetWorldResponse, because there is no other agent")
        agent.was_reset()
    agent.begin("a first step, at once and with its actions ignored")
    agent.check_is_running("a sequence has begun")


def _interrupted(agent: ProbeAgent) -> dm_env_rpc_pb2.StepResponse:
    """Take at most `_TOLD_WITHIN` steps, and return the one that is INTERRUPTED."""
    for _ in range(_TOLD_WITHIN):
        response = agent.step(requested=agent.specs.observations)
        if agent.state is not State.RUNNING:
            break
    if agent.state is not State.INTERRUPTED:
        raise agent.probe.violation(
            "an INTERRUPTED step, because the world is being reset", response
        )
    return response


def _check_is_told(trial: Trial, agent: ProbeAgent, caller: Probe) -> None:
    """Check that the agent gets an INTERRUPTED step before the ResetWorld is answered."""
    if caller.has_answer(trial.options.quiet_seconds):
        answer = caller.accepted("reset_world", "a ResetWorldResponse")
        raise caller.violation(
            "no ResetWorldResponse until the joined agent has received an INTERRUPTED step", answer
        )
    agent.check_observations(_interrupted(agent), agent.specs.observations)
    caller.accepted(
        "reset_world", "a ResetWorldResponse, because all agents have had their INTERRUPTED step"
    )
    agent.begin("a first step after the world was reset, regardless of the actions sent")


@_of_world_resets(
    "The caller waits until every other agent has had an INTERRUPTED step.",
    needs=(
        what_is_requested_is_returned,
        a_reset_world_is_taken,
        a_world_can_be_joined_from_another_connection,
    ),
    takes=Takes(connections=2),
)
def a_spectator_resets_a_world_with_an_agent(trial: Trial) -> None:
    """Reset the world from a second connection in the middle of the agent's sequence.

    A violation is an error because the agent is not told that its sequence has ended, or the caller
    is answered early.
    """
    agent = trial.join()
    agent.begin("a first step")
    spectator = trial.connect()
    spectator.send(trial.reset_world_request(agent.world_name))
    _check_is_told(trial, agent, spectator)


@_of_world_resets(
    "A ResetWorld affects all agents of the world, the caller in another way.",
    needs=(a_reset_world_is_taken,),
    explained_by=(
        an_agent_resets_its_world,
        a_spectator_resets_a_world_with_an_agent,
        agents_of_one_world_have_their_own_states,
    ),
    takes=Takes(connections=2, joined=2, agents=2),
)
def an_agent_resets_the_world_of_another(trial: Trial) -> None:
    """Let one of two agents reset the world, and check that both begin a new sequence.

    A violation is an error because the agent is not told that its sequence has ended, or the caller
    is answered early.
    """
    agent = trial.join()
    other = trial.join(world_name=agent.world_name)
    step_together((agent, other), "a first step for each agent")
    agent.probe.send(trial.reset_world_request(agent.world_name))
    _interrupted(other)
    agent.probe.accepted(
        "reset_world", "a ResetWorldResponse, because the other had its INTERRUPTED step"
    )
    agent.was_reset()
    step_together((agent, other), "a first step for each agent, at once")
