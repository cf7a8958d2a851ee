"""Joining and leaving worlds, and what needs a join."""

from __future__ import annotations

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.tensors.settings import pack_settings

_JOIN = "JoinWorldRequest/Response"
_LEAVE = "LeaveWorldRequest/Response"


@reference(_JOIN, "A world that was created can be joined, and stepped at once.")
def a_world_can_be_joined(trial: Trial) -> None:
    """Joins and steps."""
    trial.join().step(expected="a StepResponse right after the JoinWorld")


@reference(_JOIN, "The name says which world to join.")
def an_unknown_world_cannot_be_joined(trial: Trial) -> None:
    """Names a world that does not exist, beside one that does."""
    probe = trial.connect()
    trial.create_world(probe)
    request = trial.join_request(trial.options.unknown_world_name)
    probe.refuse(request, "an error, because there is no such world")
    probe.refuse(dm_env_rpc_pb2.StepRequest(), "an error, because no world was joined")


@reference(_JOIN, "Invalid settings are refused.")
def invalid_join_settings_are_refused(trial: Trial) -> None:
    """Adds each setting to the valid ones."""
    invalid = pack_settings(trial.options.invalid_join_settings)
    if not invalid:
        raise NotOfferedError("no invalid join settings were given")
    probe = trial.connect()
    name = trial.create_world(probe)
    for setting, tensor in invalid.items():
        request = trial.join_request(name)
        request.settings[setting].CopyFrom(tensor)
        probe.refuse(request, f"an error, because the setting {setting!r} is invalid")
    trial.join(probe, name)


@reference(_JOIN, "A connection joins one world at a time.")
def a_joined_connection_cannot_join_again(trial: Trial) -> None:
    """Joins the same world again, before a sequence and in one."""
    agent = trial.join()
    again = trial.join_request(agent.world_name)
    expected = "an error, because this connection is joined already"
    agent.probe.refuse(again, expected)
    agent.begin("a first step after the refused JoinWorld")
    agent.probe.refuse(again, expected)
    agent.step(expected="a StepResponse after the refused JoinWorld")


@reference(_JOIN, "A connection joins one world at a time, whichever it is.")
def a_joined_connection_cannot_join_another_world(trial: Trial) -> None:
    """Joins a second world."""
    agent = trial.join()
    another = trial.create_another_world(agent.probe)
    expected = "an error, because this connection is joined to another world"
    agent.probe.refuse(trial.join_request(another), expected)
    agent.step(expected="a StepResponse of the world that was joined first")


@overview("States", "Step and Reset need a joined world.")
def step_and_reset_need_a_join(trial: Trial) -> None:
    """Sends both before a join, and after a leave."""
    probe = trial.connect()
    expected = "an error, because the connection is not joined"
    probe.refuse(dm_env_rpc_pb2.StepRequest(), expected)
    probe.refuse(dm_env_rpc_pb2.ResetRequest(), expected)
    agent = trial.join(probe)
    agent.run()
    agent.leave()
    probe.refuse(dm_env_rpc_pb2.StepRequest(), expected)
    probe.refuse(dm_env_rpc_pb2.ResetRequest(), expected)


@reference(_LEAVE, "Leaving while not joined is a no-op.")
def leaving_while_not_joined_is_a_no_op(trial: Trial) -> None:
    """Leaves before a join and twice after one."""
    probe = trial.connect()
    leave = dm_env_rpc_pb2.LeaveWorldRequest()
    expected = "a LeaveWorldResponse, also while not joined"
    probe.accept(leave, expected)
    agent = trial.join(probe)
    agent.step()
    for _ in range(3):
        probe.accept(leave, expected)


@reference(_LEAVE, "After a leave the world can be joined again.")
def a_world_can_be_joined_again_after_a_leave(trial: Trial) -> None:
    """Leaves in the middle of a sequence; after the next join another one begins."""
    agent = trial.join()
    agent.run()
    agent.leave()
    again = trial.join(agent.probe, agent.world_name)
    again.begin("a first step after joining again, whose actions are ignored")


@overview("Multiagent support", "Each connection has its own part in a world, or none.")
def agents_of_one_world_have_their_own_states(trial: Trial) -> None:
    """Joins a second agent; both step, and neither affects the other."""
    agent = trial.join()
    other = trial.join_beside(agent)
    # Both are sent before an answer is read, because the world may wait for all its agents.
    for one in (agent, other):
        one.probe.send(one.request())
    for one in (agent, other):
        one.took(one.probe.accepted("step", "a StepResponse for each agent"))


@reference(_JOIN, "A world takes as many agents as it expects.")
def a_world_for_one_agent_refuses_another(trial: Trial) -> None:
    """Joins from a second connection."""
    if trial.options.several_agents is not False:
        raise NotOfferedError("the options do not say that the world takes one agent only")
    agent = trial.join()
    agent.begin("a first step")
    other = trial.connect()
    other.refuse(trial.join_request(agent.world_name), "an error, because the world has its agent")
    agent.check_is_running("the refused JoinWorld came from another connection")
