"""Joining and leaving worlds, and what needs a join."""

from __future__ import annotations

import functools

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.checks.foundations import (
    a_failed_request_is_answered,
    a_world_can_be_joined,
    an_error_changes_no_state,
    one_answer_for_each_request,
    unknown_actions_are_refused,
)
from dm_env_rpc_client.compliance.checks.world_independence import (
    a_step_changes_its_own_world_only,
)
from dm_env_rpc_client.compliance.checks.world_lifetimes import names_of_worlds_are_unique
from dm_env_rpc_client.compliance.facts import Takes
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe_agent import step_together
from dm_env_rpc_client.compliance.trial import Trial

_of_joining = functools.partial(reference, "JoinWorldRequest/Response")
_of_leaving = functools.partial(reference, "LeaveWorldRequest/Response")


@_of_joining("Invalid settings are refused.", needs=(a_failed_request_is_answered,))
def invalid_join_settings_are_refused(trial: Trial) -> None:
    """Adds each setting to the valid ones.

    An error: the options promise it.
    """
    invalid = trial.invalid_settings("join")
    probe = trial.connect()
    name = trial.create_world(probe)
    for setting, tensor in invalid.items():
        request = trial.join_request(name)
        request.settings[setting].CopyFrom(tensor)
        probe = trial.usable(probe)
        probe.refuse(request, f"an error, because the setting {setting!r} is invalid")
    trial.join(trial.usable(probe), name)


@_of_joining(
    "A connection joins one world at a time.",
    leniency="a client leaves its world before it joins again",
    needs=(an_error_changes_no_state,),
)
def a_joined_connection_cannot_join_again(trial: Trial) -> None:
    """Joins the same world again, before a sequence and in one.

    A warning: the refusal protects a client from its own mistake only.
    """
    agent = trial.join()
    again = trial.join_request(agent.world_name)
    expected = "an error, because this connection is joined already"
    agent.probe.refuse(again, expected)
    agent.begin("a first step after the refused JoinWorld")
    agent.probe.refuse(again, expected)
    agent.step(expected="a StepResponse after the refused JoinWorld")


@_of_joining(
    "A connection joins one world at a time, whichever it is.",
    leniency="a client leaves its world before it joins another",
    needs=(a_joined_connection_cannot_join_again, names_of_worlds_are_unique),
)
def a_joined_connection_cannot_join_another_world(trial: Trial) -> None:
    """Joins a second world.

    A warning: the refusal protects a client from its own mistake only.
    """
    agent = trial.join()
    another = trial.create_another_world(agent.probe)
    expected = "an error, because this connection is joined to another world"
    agent.probe.refuse(trial.join_request(another), expected)
    agent.step(expected="a StepResponse of the world that was joined first")


@overview(
    "States",
    "Step and Reset need a joined world.",
    leniency="a client joins a world before it steps or resets",
    needs=(a_world_can_be_joined, a_failed_request_is_answered, one_answer_for_each_request),
)
def step_and_reset_need_a_join(trial: Trial) -> None:
    """Sends both before a join, and after a leave.

    A warning: the refusal protects a client from its own mistake only.
    """
    probe = trial.connect()
    name = trial.create_world(probe)
    expected = "an error, because the connection is not joined"
    requests = (dm_env_rpc_pb2.StepRequest(), dm_env_rpc_pb2.ResetRequest())
    for request in requests:
        probe = trial.usable(probe)
        probe.refuse(request, expected)
    for request in requests:
        probe = trial.usable(probe)
        agent = trial.join(probe, name)
        agent.run()
        agent.leave()
        probe.refuse(request, f"{expected} any more")


@_of_leaving(
    "Leaving while not joined is a no-op.",
    needs=(a_world_can_be_joined, one_answer_for_each_request),
)
def leaving_while_not_joined_is_a_no_op(trial: Trial) -> None:
    """Leaves before a join and twice after one.

    An error: a client may leave to be on the safe side, and gets an error.
    """
    probe = trial.connect()
    leave = dm_env_rpc_pb2.LeaveWorldRequest()
    expected = "a LeaveWorldResponse, also while not joined"
    probe.accept(leave, expected)
    agent = trial.join(probe)
    agent.step()
    for _ in range(3):
        probe.accept(leave, expected)


@_of_leaving(
    "An agent that joins again after a leave begins a sequence.",
    needs=(a_world_can_be_joined, one_answer_for_each_request),
)
def a_world_can_be_joined_again_after_a_leave(trial: Trial) -> None:
    """Leaves in the middle of a sequence; after the next join another one begins.

    An error: the agent continues a sequence that it has not begun. The server may refuse the join,
    because it decides what becomes of a world after a leave.
    """
    agent = trial.run()
    agent.leave()
    answer = agent.probe.ask(trial.join_request(agent.world_name), "a JoinWorldResponse")
    if not isinstance(answer, dm_env_rpc_pb2.JoinWorldResponse):
        raise NotOfferedError(f"the world cannot be joined again after a leave: {answer.message}")
    agent.joined(agent.probe, answer)
    agent.begin("a first step after joining again, whose actions are ignored")


@overview(
    "Multiagent support",
    "Each connection has its own part in a world, or none.",
    explained_by=(a_step_changes_its_own_world_only,),
    takes=Takes(connections=2, joined=2, agents=2),
)
def agents_of_one_world_have_their_own_states(trial: Trial) -> None:
    """Joins a second agent; both step, and neither affects the other.

    An error: what one client does spoils the sequence of another.
    """
    agent = trial.join()
    other = trial.join(world_name=agent.world_name)
    step_together((agent, other), "a StepResponse for each agent")


@_of_joining(
    "A world takes as many agents as it expects.",
    needs=(a_world_can_be_joined, a_failed_request_is_answered, unknown_actions_are_refused),
    takes=Takes(connections=2),
)
def a_world_for_one_agent_refuses_another(trial: Trial) -> None:
    """Joins from a second connection.

    An error: two clients act as one agent, of which the options say that there is no other.
    """
    if trial.options.several_agents is not False:
        raise NotOfferedError("the options do not say that the world takes one agent only")
    agent = trial.join()
    agent.begin("a first step")
    other = trial.connect()
    other.refuse(trial.join_request(agent.world_name), "an error, because the world has its agent")
    agent.check_is_running("the refused JoinWorld came from another connection")
