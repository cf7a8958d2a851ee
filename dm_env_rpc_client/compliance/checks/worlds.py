"""Checks for creating, joining, leaving and destroying worlds, and for requests that need one."""

from __future__ import annotations

import functools

from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.checks.foundations import (
    a_failed_request_is_answered,
    a_world_can_be_joined,
    an_error_changes_no_state,
    one_answer_for_each_request,
    unknown_actions_are_refused,
)
from dm_env_rpc_client.compliance.outcome import NotOfferedError, Takes
from dm_env_rpc_client.compliance.probe import Probe, describe
from dm_env_rpc_client.compliance.trial import Trial

_of_creation = functools.partial(reference, "CreateWorldRequest/Response")
_of_joining = functools.partial(reference, "JoinWorldRequest/Response")
_of_leaving = functools.partial(reference, "LeaveWorldRequest/Response")
_of_destruction = functools.partial(reference, "DestroyWorldRequest/Response")
_of_several_worlds = functools.partial(reference, "Multiple world support")


_UNKNOWN_SETTING = "no such setting"

UNKNOWN_IS_NOT_MENTIONED = (
    "the documents do not mention unknown settings, and a client sends only settings that the "
    "server has"
)


def destroy_world(trial: Trial, probe: Probe, name: str) -> None:
    """Destroy a world created by the check, or raise ViolationError if the server refuses."""
    _check_creates(trial)
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=name)
    probe.accept(request, "a DestroyWorldResponse")
    trial.forget_world(name)


def _check_creates(trial: Trial) -> None:
    if trial.options.world_name is not None:
        raise NotOfferedError(
            "the options specify an existing world, so no world is created or destroyed"
        )


def refuse_unknown_setting(
    probe: Probe,
    request: dm_env_rpc_pb2.CreateWorldRequest
    | dm_env_rpc_pb2.JoinWorldRequest
    | dm_env_rpc_pb2.ResetRequest,
) -> None:
    """Send a valid request with an additional setting, which the server should refuse."""
    request.settings[_UNKNOWN_SETTING].int64s.array.append(1)
    probe.refuse(request, f"an error, because there is no setting {_UNKNOWN_SETTING!r}")


@_of_creation(
    "A world is created with the settings, and destroyed.", otherwise="worlds cannot be destroyed"
)
def a_world_can_be_created_and_destroyed(trial: Trial) -> None:
    """Create and destroy a world twice, because the first world must leave nothing behind.

    A violation is an error because a client cannot get rid of its worlds.
    """
    _check_creates(trial)
    probe = trial.connect()
    for _ in range(2):
        destroy_world(trial, probe, trial.create_world(probe))


@_of_creation("Required settings cannot be left out.", needs=(a_failed_request_is_answered,))
def required_create_settings_are_required(trial: Trial) -> None:
    """Try to create worlds, each time leaving out one of the required settings.

    A violation is an error because the options state that these settings are required.
    """
    _check_creates(trial)
    if not trial.options.required_create_settings:
        raise NotOfferedError("the options do not list any required create settings")
    probe = trial.connect()
    for name in trial.options.required_create_settings:
        request = trial.create_request()
        del request.settings[name]
        probe = trial.usable(probe)
        probe.refuse(request, f"an error, because the setting {name!r} is missing")


@_of_creation("Invalid settings are refused.", needs=(a_failed_request_is_answered,))
def invalid_create_settings_are_refused(trial: Trial) -> None:
    """Send each invalid setting together with the valid settings.

    A violation is an error because the options state that the server refuses these settings.
    """
    _check_creates(trial)
    invalid = trial.invalid_settings("create")
    probe = trial.connect()
    for name, tensor in invalid.items():
        request = trial.create_request()
        request.settings[name].CopyFrom(tensor)
        probe = trial.usable(probe)
        probe.refuse(request, f"an error, because the setting {name!r} is invalid")


@_of_creation(
    "A world is created with the provided settings.",
    leniency=UNKNOWN_IS_NOT_MENTIONED,
    needs=(a_failed_request_is_answered,),
    explained_by=(invalid_create_settings_are_refused,),
    otherwise="unknown settings are not refused",
)
def unknown_create_settings_are_refused(trial: Trial) -> None:
    """Try to create a world with the valid settings and an unknown one.

    A violation is a warning because the documents do not mention unknown settings. A client that
    misspells a setting is not told that it has no effect.
    """
    _check_creates(trial)
    refuse_unknown_setting(trial.connect(), trial.create_request())


@_of_creation(
    "The name of a world is unique.",
    otherwise="two worlds that exist at the same time can have one name",
)
def names_of_worlds_are_unique(trial: Trial) -> None:
    """Create three worlds on one connection. A server with only one world is allowed to refuse.

    A violation is an error because a client cannot specify which of two worlds with one name to
    join, reset or destroy.
    """
    probe = trial.connect()
    names = [trial.create_world(probe)]
    for _ in range(2):
        _create_beside(trial, probe, names)


def _create_beside(trial: Trial, probe: Probe, names: list[str]) -> None:
    """Create a world, and add its name to `names` after checking that it is new."""
    name = trial.create_another_world(probe)
    if name in names:
        raise probe.violation(
            f"an error, or a name other than {', '.join(map(repr, names))}, because these worlds "
            "still exist",
            f"{name!r} again",
        )
    names.append(name)


@_of_creation(
    "A world may be joined from another connection than the one that created it.",
    needs=(a_world_can_be_joined,),
    takes=Takes(connections=2),
)
def a_world_can_be_joined_from_another_connection(trial: Trial) -> None:
    """Create a world on one connection, then join it and step on another connection.

    A violation is an error because one client cannot create worlds for others.
    """
    creator = trial.connect()
    agent = trial.join(trial.connect(), trial.create_world(creator))
    agent.begin("a first step in a world that another connection created")


@_of_creation(
    "The name of a world is unique on the server, not on one connection only.",
    needs=(names_of_worlds_are_unique, a_world_can_be_joined_from_another_connection),
    otherwise="worlds of two connections can have one name",
    takes=Takes(connections=2),
)
def names_of_worlds_are_unique_across_connections(trial: Trial) -> None:
    """Create worlds on one connection, on a second connection, and on the first one again.

    A violation is an error because a client that learned the name from another connection joins the
    wrong world.
    """
    probe = trial.connect()
    names = [trial.create_world(probe)]
    _create_beside(trial, trial.connect(), names)
    _create_beside(trial, probe, names)


@_of_several_worlds(
    "A server with one world refuses to create another.", needs=(a_failed_request_is_answered,)
)
def a_server_with_one_world_refuses_another(trial: Trial) -> None:
    """Try to create a second world while the first one exists.

    A violation is an error because each of two clients considers the same world its own.
    """
    _check_creates(trial)
    if trial.options.several_worlds is not False:
        raise NotOfferedError("the options do not state that the server allows only one world")
    probe = trial.connect()
    trial.create_world(probe)
    probe.refuse(trial.create_request(), "an error, because the only world exists already")


@_of_joining("The name selects the world to join.", needs=(a_failed_request_is_answered,))
def an_unknown_world_cannot_be_joined(trial: Trial) -> None:
    """Try to join a nonexistent world while another world exists.

    A violation is an error because a client whose world was destroyed by another client enters the
    wrong world.
    """
    probe = trial.connect()
    trial.create_world(probe)
    request = trial.join_request(trial.options.unknown_world_name)
    probe.refuse(request, "an error, because there is no such world")
    if trial.facts.errors_are_no_ops:
        expected = "an error, because no world was joined"
        probe.refuse(dm_env_rpc_pb2.StepRequest(), expected, ("step_and_reset_need_a_join",))


@_of_destruction(
    "A destroyed world no longer exists.",
    needs=(
        a_world_can_be_created_and_destroyed,
        names_of_worlds_are_unique,
        a_failed_request_is_answered,
    ),
    explained_by=(an_unknown_world_cannot_be_joined,),
)
def a_destroyed_world_cannot_be_joined(trial: Trial) -> None:
    """Try to join a world that has just been destroyed.

    A violation is an error because a client acts in a world that others consider destroyed.
    """
    probe = trial.connect()
    name = trial.create_world(probe)
    destroy_world(trial, probe, name)
    probe.refuse(trial.join_request(name), "an error, because the world was destroyed")


@_of_destruction(
    "A nonexistent world cannot be destroyed.",
    leniency="the world does not exist afterwards, as the client requested",
    needs=(a_destroyed_world_cannot_be_joined,),
)
def an_unknown_world_cannot_be_destroyed(trial: Trial) -> None:
    """Try to destroy a world that never existed and a world that was already destroyed.

    A violation is a warning because the world does not exist afterwards, and the documents do not
    mention unknown worlds.
    """
    probe = trial.connect()
    unknown = trial.options.unknown_world_name
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=unknown)
    probe.refuse(request, "an error, because there is no such world")
    if trial.options.world_name is None:
        probe = trial.usable(probe)
        name = trial.create_world(probe)
        destroy_world(trial, probe, name)
        request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=name)
        probe.refuse(request, "an error, because the world was destroyed already")


@_of_destruction(
    "A world with a joined agent is destroyed at once, later, or not at all.",
    needs=(a_failed_request_is_answered, names_of_worlds_are_unique),
    takes=Takes(connections=2),
)
def a_world_with_an_agent_is_destroyed_in_one_of_three_ways(trial: Trial) -> None:
    """Destroy an agent's world from another connection, and check the answers on both connections.

    A violation is an error because the agent acts in a nonexistent world, or waits forever.
    """
    agent = trial.join()
    _check_creates(trial)
    agent.run()
    other = trial.connect()
    other.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=agent.world_name))
    if not other.has_answer(trial.options.quiet_seconds):
        agent.leave("a LeaveWorldResponse, while a DestroyWorld waits for it")
        trial.dismiss_companions(agent.world_name)
        answer = other.answer("destroy_world", "a DestroyWorldResponse, once the agent has left")
        if not isinstance(answer, status_pb2.Status):
            trial.forget_world(agent.world_name)
        elif trial.facts.survives_errors and not trial.options.companions:
            # A slow server may have decided before the agent left. Now it has no reason to refuse.
            destroy_world(trial, other, agent.world_name)
        return
    answer = other.answer("destroy_world", "a DestroyWorldResponse or an error")
    if isinstance(answer, status_pb2.Status):
        agent.step(expected=f"a StepResponse, because the DestroyWorld got {describe(answer)}")
        return
    agent.refuse_step("an error, because the world was destroyed")
    trial.forget_world(agent.world_name)


@_of_destruction(
    "A connection cannot destroy the world that it is joined to.",
    leniency="a client leaves its world before it destroys it",
    needs=(a_failed_request_is_answered, names_of_worlds_are_unique),
    explained_by=(a_world_with_an_agent_is_destroyed_in_one_of_three_ways,),
)
def a_joined_connection_cannot_destroy_its_world(trial: Trial) -> None:
    """Try to destroy the joined world before and during a sequence, and continue stepping.

    If errors are not no-ops, try it only before the sequence.

    A violation is a warning because the refusal protects a client from its own mistake only.
    """
    agent = trial.join()
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=agent.world_name)
    expected = "an error, because this connection is joined to the world"
    agent.probe.refuse(request, expected)
    if trial.facts.errors_are_no_ops:
        agent.begin("a first step, because the world was not destroyed")
        agent.probe.refuse(request, expected)
        agent.step(expected="a StepResponse, because the world was not destroyed")


@_of_joining("Invalid settings are refused.", needs=(a_failed_request_is_answered,))
def invalid_join_settings_are_refused(trial: Trial) -> None:
    """Send each invalid setting together with the valid settings.

    A violation is an error because the options state that the server refuses these settings.
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
    "A world is joined with the settings provided.",
    leniency=UNKNOWN_IS_NOT_MENTIONED,
    needs=(a_failed_request_is_answered,),
    explained_by=(invalid_join_settings_are_refused, unknown_create_settings_are_refused),
)
def unknown_join_settings_are_refused(trial: Trial) -> None:
    """Try to join a world with the valid settings and an unknown one.

    A violation is a warning because the documents do not mention unknown settings. A client that
    misspells a setting is not told that it has no effect.
    """
    probe = trial.connect()
    refuse_unknown_setting(probe, trial.join_request(trial.create_world(probe)))


@_of_joining(
    "A connection joins one world at a time.",
    leniency="a client leaves its world before it joins again",
    needs=(an_error_changes_no_state,),
)
def a_joined_connection_cannot_join_again(trial: Trial) -> None:
    """Try to join the same world again, before and during a sequence.

    A violation is a warning because the refusal protects a client from its own mistake only.
    """
    agent = trial.join()
    again = trial.join_request(agent.world_name)
    expected = "an error, because this connection is joined already"
    agent.probe.refuse(again, expected)
    agent.begin("a first step after the refused JoinWorld")
    agent.probe.refuse(again, expected)
    agent.step(expected="a StepResponse after the refused JoinWorld")


@_of_joining(
    "A connection joins only one of several worlds at a time.",
    leniency="a client leaves its world before it joins another",
    needs=(a_joined_connection_cannot_join_again, names_of_worlds_are_unique),
)
def a_joined_connection_cannot_join_another_world(trial: Trial) -> None:
    """Try to join a second world on the same connection.

    A violation is a warning because the refusal protects a client from its own mistake only.
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
    needs=(a_failed_request_is_answered, one_answer_for_each_request),
)
def step_and_reset_need_a_join(trial: Trial) -> None:
    """Send a Step and a Reset before joining a world and after leaving it.

    A violation is a warning because the refusal protects a client from its own mistake only.
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
    needs=(one_answer_for_each_request,),
)
def leaving_while_not_joined_is_a_no_op(trial: Trial) -> None:
    """Send LeaveWorld before joining a world, and several times afterwards.

    A violation is an error because a client that leaves to be on the safe side gets an error.
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
    "An agent that joins again after a leave begins a new sequence.",
    needs=(one_answer_for_each_request,),
)
def a_world_can_be_joined_again_after_a_leave(trial: Trial) -> None:
    """Leave the world in the middle of a sequence, rejoin it, and begin a new sequence.

    A violation is an error because the agent continues a sequence that it has not begun. The server
    is allowed to refuse the join, because it decides what happens to a world after a leave.
    """
    agent = trial.run()
    agent.leave()
    answer = agent.probe.ask(trial.join_request(agent.world_name), "a JoinWorldResponse")
    if not isinstance(answer, dm_env_rpc_pb2.JoinWorldResponse):
        raise NotOfferedError(
            f"the agent cannot rejoin the world after leaving it: {answer.message}"
        )
    agent.joined(agent.probe, answer)
    agent.begin("a first step after joining again, regardless of the actions sent")


@_of_joining(
    "A world accepts only as many agents as it expects.",
    needs=(unknown_actions_are_refused,),
    takes=Takes(connections=2),
)
def a_world_for_one_agent_refuses_another(trial: Trial) -> None:
    """Try to join the world from a second connection.

    A violation is an error because two clients act in a world that, according to the options, has
    only one agent.
    """
    if trial.options.several_agents is not False:
        raise NotOfferedError("the options do not state that the world accepts only one agent")
    agent = trial.join()
    agent.begin("a first step")
    other = trial.connect()
    other.refuse(trial.join_request(agent.world_name), "an error, because the world has its agent")
    agent.check_is_running("the refused JoinWorld came from another connection")
