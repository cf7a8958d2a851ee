"""Creating and destroying worlds."""

from __future__ import annotations

from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import reference
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import Probe, describe
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.tensors.settings import pack_settings

_CREATE = "CreateWorldRequest/Response"
_DESTROY = "DestroyWorldRequest/Response"
_SEVERAL = "Multiple world support"


def _destroy(trial: Trial, probe: Probe, name: str) -> None:
    _check_creates(trial)
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=name)
    probe.accept(request, "a DestroyWorldResponse")
    trial.forget_world(name)


def _check_creates(trial: Trial) -> None:
    if trial.options.world_name is not None:
        raise NotOfferedError("the options name an existing world, so none is created or destroyed")


@reference(_CREATE, "A world is created with the settings, and destroyed.")
def a_world_can_be_created_and_destroyed(trial: Trial) -> None:
    """Does so twice, because the first time must leave nothing behind."""
    _check_creates(trial)
    probe = trial.connect()
    for _ in range(2):
        _destroy(trial, probe, trial.create_world(probe))


@reference(_CREATE, "Settings that are required cannot be left out.")
def required_create_settings_are_required(trial: Trial) -> None:
    """Leaves each of them out."""
    _check_creates(trial)
    if not trial.options.required_create_settings:
        raise NotOfferedError("the options name no required create setting")
    probe = trial.connect()
    for name in trial.options.required_create_settings:
        request = trial.create_request()
        del request.settings[name]
        probe.refuse(request, f"an error, because the setting {name!r} is missing")


@reference(_CREATE, "Invalid settings are refused.")
def invalid_create_settings_are_refused(trial: Trial) -> None:
    """Adds each setting to the valid ones."""
    _check_creates(trial)
    invalid = pack_settings(trial.options.invalid_create_settings)
    if not invalid:
        raise NotOfferedError("no invalid create settings were given")
    probe = trial.connect()
    for name, tensor in invalid.items():
        request = trial.create_request()
        request.settings[name].CopyFrom(tensor)
        probe.refuse(request, f"an error, because the setting {name!r} is invalid")


@reference(_CREATE, "The name of a world is unique.")
def names_of_worlds_are_unique(trial: Trial) -> None:
    """Creates three at once."""
    probe = trial.connect()
    names = [trial.create_world(probe)]
    for _ in range(2):
        names.append(trial.create_another_world(probe))
        if names[-1] in names[:-1]:
            raise probe.violation(f"another name than {names[:-1]}", f"{names[-1]!r} again")


@reference(_SEVERAL, "A server with one world refuses to create another.")
def a_server_with_one_world_refuses_another(trial: Trial) -> None:
    """Creates a second one beside the first."""
    _check_creates(trial)
    if trial.options.several_worlds is not False:
        raise NotOfferedError("the options do not say that the server has one world only")
    probe = trial.connect()
    trial.create_world(probe)
    probe.refuse(trial.create_request(), "an error, because the only world exists already")


@reference(_CREATE, "Another connection may join a world than the one that created it.")
def a_world_can_be_joined_from_another_connection(trial: Trial) -> None:
    """Creates on one connection, joins and steps on another."""
    creator = trial.connect()
    agent = trial.join(trial.connect(), trial.create_world(creator))
    agent.begin("a first step in a world that another connection created")


@reference(_DESTROY, "A world that does not exist cannot be destroyed.")
def an_unknown_world_cannot_be_destroyed(trial: Trial) -> None:
    """Names one that was never created, and one that was destroyed."""
    probe = trial.connect()
    unknown = trial.options.unknown_world_name
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=unknown)
    probe.refuse(request, "an error, because there is no such world")
    if trial.options.world_name is None:
        name = trial.create_world(probe)
        _destroy(trial, probe, name)
        request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=name)
        probe.refuse(request, "an error, because the world was destroyed already")


@reference(_DESTROY, "A world that was destroyed is gone.")
def a_destroyed_world_cannot_be_joined(trial: Trial) -> None:
    """Joins a world that was just destroyed."""
    probe = trial.connect()
    name = trial.create_world(probe)
    _destroy(trial, probe, name)
    probe.refuse(trial.join_request(name), "an error, because the world was destroyed")


@reference(_DESTROY, "A connection cannot destroy the world that it is joined to.")
def a_joined_connection_cannot_destroy_its_world(trial: Trial) -> None:
    """Tries before a sequence and in one; the agent continues after each."""
    agent = trial.join()
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=agent.world_name)
    expected = "an error, because this connection is joined to the world"
    agent.probe.refuse(request, expected)
    agent.begin("a first step, because the world was not destroyed")
    agent.probe.refuse(request, expected)
    agent.step(expected="a StepResponse, because the world was not destroyed")


@reference(_DESTROY, "Under a joined agent a world is destroyed at once, later, or not.")
def a_world_with_an_agent_is_destroyed_in_one_of_three_ways(trial: Trial) -> None:
    """Destroys from another connection; the agent's next answer must fit that answer."""
    agent = trial.join()
    _check_creates(trial)
    agent.run()
    other = trial.connect()
    other.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=agent.world_name))
    if not other.has_answer(trial.options.quiet_seconds):
        agent.leave("a LeaveWorldResponse, while a DestroyWorld waits for it")
        trial.dismiss_companions(agent.world_name)
        other.accepted("destroy_world", "a DestroyWorldResponse, once the agent has left")
        trial.forget_world(agent.world_name)
        return
    answer = other.answer("destroy_world", "a DestroyWorldResponse or an error")
    if isinstance(answer, status_pb2.Status):
        agent.step(expected=f"a StepResponse, because the DestroyWorld got {describe(answer)}")
        return
    trial.forget_world(agent.world_name)
    agent.refuse_step("an error, because the world was destroyed")


@reference(_SEVERAL, "An agent in one world does not affect an agent in another.")
def worlds_are_independent(trial: Trial) -> None:
    """Resets, leaves and destroys one world in the middle of a sequence in another."""
    agent = trial.join()
    probe = trial.connect()
    other = trial.join(probe, trial.create_another_world(probe))
    agent.begin("a first step in one world")
    other.begin("a first step in the other world")
    other.reset_if_offered()
    agent.check_is_running("the Reset was in another world")
    other.leave()
    agent.check_is_running("the LeaveWorld was in another world")
    if not trial.options.companions:  # They are still in that world.
        _destroy(trial, probe, other.world_name)
    agent.step(expected="a StepResponse, because it was another world that was destroyed")
