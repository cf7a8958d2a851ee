"""ResetWorld: a new sequence for every agent of a world."""

from __future__ import annotations

import functools

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import reference
from dm_env_rpc_client.compliance.checks.foundations import (
    a_failed_request_is_answered,
    a_reset_world_is_taken,
    a_world_can_be_joined,
)
from dm_env_rpc_client.compliance.checks.joining import agents_of_one_world_have_their_own_states
from dm_env_rpc_client.compliance.checks.observations import what_is_requested_is_returned
from dm_env_rpc_client.compliance.checks.world_lifetimes import (
    a_world_can_be_joined_from_another_connection,
)
from dm_env_rpc_client.compliance.facts import Takes
from dm_env_rpc_client.compliance.probe import Probe
from dm_env_rpc_client.compliance.probe_agent import ProbeAgent, step_together
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.protocol.lifecycle import State

_of_world_resets = functools.partial(reference, "ResetWorldRequest/Response")

_STEPS = 5
"""The number of steps within which an agent must be told of another connection's reset."""


@_of_world_resets(
    "The name says which world to reset.",
    leniency="no world is affected, and a client that knows its world names it",
    needs=(a_failed_request_is_answered,),
)
def an_unknown_world_cannot_be_reset(trial: Trial) -> None:
    """Names one that does not exist.

    A warning: nothing is reset, and the documents do not mention the case.
    """
    request = trial.reset_world_request(trial.options.unknown_world_name)
    trial.connect().refuse(request, "an error, because there is no such world")


@_of_world_resets(
    "A ResetWorld need not come from a connection that is joined.",
    needs=(a_world_can_be_joined, a_reset_world_is_taken),
)
def a_spectator_resets_a_world_without_agents(trial: Trial) -> None:
    """Resets before an agent has joined; then one joins and begins as usual.

    An error: a client that manages worlds cannot reset them.
    """
    probe = trial.connect()
    name = trial.create_world(probe)
    probe.accept(
        trial.reset_world_request(name), "a ResetWorldResponse, because no agent is to be told"
    )
    trial.join(probe, name).begin("a first step in the world that was reset")


@_of_world_resets(
    "The agent that resets the world begins the next sequence at once.",
    needs=(a_world_can_be_joined, a_reset_world_is_taken),
)
def an_agent_resets_its_world(trial: Trial) -> None:
    """Resets before a sequence, in one, and again; no step is INTERRUPTED.

    An error: the agent takes the end of the old sequence for a step of the new one.
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
    """Steps until the sequence ends, which must be soon, and returns the INTERRUPTED step."""
    for _ in range(_STEPS):
        response = agent.step(requested=agent.specs.observations)
        if agent.state is not State.RUNNING:
            break
    if agent.state is not State.INTERRUPTED:
        raise agent.probe.violation(
            "a step that is INTERRUPTED, because the world is being reset", response
        )
    return response


def _check_is_told(trial: Trial, agent: ProbeAgent, caller: Probe) -> None:
    """Checks that the agent has an INTERRUPTED step before the caller has its answer."""
    if caller.has_answer(trial.options.quiet_seconds):
        answer = caller.accepted("reset_world", "a ResetWorldResponse")
        raise caller.violation(
            "no ResetWorldResponse until the joined agent has had an INTERRUPTED step", answer
        )
    agent.check_observations(_interrupted(agent), agent.specs.observations)
    caller.accepted("reset_world", "a ResetWorldResponse, because all agents have been told")
    agent.begin("a first step after the world was reset, whose actions are ignored")


@_of_world_resets(
    "The caller waits until every other agent had an INTERRUPTED step.",
    needs=(
        what_is_requested_is_returned,
        a_reset_world_is_taken,
        a_world_can_be_joined_from_another_connection,
    ),
    takes=Takes(connections=2),
)
def a_spectator_resets_a_world_with_an_agent(trial: Trial) -> None:
    """Resets from a second connection in the middle of the agent's sequence.

    An error: the agent is not told that its sequence has ended, or the caller is told too early.
    """
    agent = trial.join()
    agent.begin("a first step")
    spectator = trial.connect()
    spectator.send(trial.reset_world_request(agent.world_name))
    _check_is_told(trial, agent, spectator)


@_of_world_resets(
    "A ResetWorld affects all agents of the world, the caller otherwise.",
    needs=(a_reset_world_is_taken,),
    explained_by=(
        an_agent_resets_its_world,
        a_spectator_resets_a_world_with_an_agent,
        agents_of_one_world_have_their_own_states,
    ),
    takes=Takes(connections=2, joined=2, agents=2),
)
def an_agent_resets_the_world_of_another(trial: Trial) -> None:
    """Resets from one agent: the other is told by a step, and both begin a new sequence.

    An error: the agent is not told that its sequence has ended, or the caller is told too early.
    """
    agent = trial.join()
    other = trial.join(world_name=agent.world_name)
    step_together((agent, other), "a first step for each agent")
    agent.probe.send(trial.reset_world_request(agent.world_name))
    _interrupted(other)
    agent.probe.accepted("reset_world", "a ResetWorldResponse, because the other has been told")
    agent.was_reset()
    step_together((agent, other), "a first step for each agent, at once")
