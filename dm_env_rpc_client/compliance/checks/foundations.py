"""The checks that run first, because all other checks depend on them.

If a check in this module has a finding, the checks that depend on it are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TypeAlias

from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.outcome import NotOfferedError, ViolationError
from dm_env_rpc_client.compliance.probe import Probe, describe, unknown_uid
from dm_env_rpc_client.compliance.trial import Trial

_of_errors = functools.partial(overview, "Errors")
_of_joining = functools.partial(reference, "JoinWorldRequest/Response")
_of_specs = functools.partial(reference, "Specs")

_NEEDS_SETTINGS = (
    "if the server needs settings, pass --create NAME=VALUE; if it has a world already, pass "
    "--world NAME, where the name may be ''"
)
_NEEDS_NAME = (
    "if the server needs settings, pass --join NAME=VALUE; if --world names the world, check the "
    "name"
)
_UNKNOWN_IS_A_MISTAKE = "a client sends only UIDs of the specs"


@_of_joining(
    "A world that exists, or that was created, can be joined.", otherwise="nothing can be checked"
)
def the_server_can_be_checked(trial: Trial) -> None:
    """Create a world and join it.

    A violation is an error because without a world, nothing can be checked and no client can act.
    """
    name = trial.options.world_name
    join_expected = f"a JoinWorldResponse; {_NEEDS_NAME}"
    if name is not None:
        probe, joined = trial.first_answer(trial.join_request(name), join_expected)
    else:
        expected = f"a CreateWorldResponse; {_NEEDS_SETTINGS}"
        probe, created = trial.first_answer(trial.create_request(), expected)
        if _is_error(created):
            raise probe.violation(expected, created)
        joined = probe.ask(trial.join_request(created.world_name), join_expected)
    if _is_error(joined):
        raise probe.violation(join_expected, joined)


@_of_joining(
    "An agent can step at once after its JoinWorld.",
    otherwise="an agent that has joined cannot step",
)
def a_world_can_be_joined(trial: Trial) -> None:
    """Join a world and take a step.

    A violation is an error because every client depends on joining and stepping.
    """
    agent = trial.join()
    agent.took(
        agent.probe.accept(
            agent.request({}),
            "a StepResponse right after the JoinWorld; if the world waits for other agents, pass "
            "--companions N",
            ("a_first_step_needs_no_actions",),
        )
    )


@reference(
    "StepRequest/Response",
    "A step that begins a sequence ignores its actions, so it needs none.",
    needs=(a_world_can_be_joined,),
    otherwise="a first step without actions is refused",
)
def a_first_step_needs_no_actions(trial: Trial) -> None:
    """Begin a sequence without actions; if the server refuses, begin it with valid ones.

    A violation is an error because a client has nothing to act on before its first observations.
    """
    agent = trial.join()
    answer = agent.probe.ask(agent.request({}))
    if not _is_error(answer):
        return
    violation = agent.probe.violation(
        "a first step without actions: the server must ignore the actions of a step that begins a "
        "sequence, that is, after a JoinWorld, a Reset or the end of a sequence, and so cannot "
        "demand any",
        answer,
    )
    if trial.options.load_policy() is not None:
        raise NotOfferedError("the policy chooses actions only for steps within a sequence")
    trial.recover(agent)
    if not _is_error(agent.probe.ask(agent.request(agent.valid_actions()))):
        raise violation
    raise NotOfferedError(f"no first step is taken, with or without actions: {answer.message}")


_Invalid: TypeAlias = dm_env_rpc_pb2.StepRequest | dm_env_rpc_pb2.JoinWorldRequest


def _invalid_requests(trial: Trial) -> Iterator[tuple[Probe, _Invalid, str]]:
    """Yield connections, each with a request that should be refused and the expected answer."""
    yield trial.connect(), dm_env_rpc_pb2.StepRequest(), "an error, because no world is joined"
    join = dm_env_rpc_pb2.JoinWorldRequest(world_name=trial.options.unknown_world_name)
    yield trial.connect(), join, "an error, because there is no such world"
    agent = trial.join()
    step = agent.request({}, requested=[unknown_uid(agent.specs.observations)])
    yield agent.probe, step, "an error, because there is no such observation"


def _is_error(answer: object) -> bool:
    return isinstance(answer, status_pb2.Status)


@_of_errors(
    "A failed request is answered with an error.",
    needs=(a_world_can_be_joined,),
    otherwise="failed requests are not answered with an error",
)
def a_failed_request_is_answered(trial: Trial) -> None:
    """Send invalid requests until one of them fails.

    A violation is an error because a client gets no answer, or its stream ends without a reason.
    """
    for probe, request, expected in _invalid_requests(trial):
        if _is_error(probe.ask(request, expected)):
            return
        probe.close()
    raise NotOfferedError("no request was refused")


@reference(
    "StepRequest/Response",
    "The first step of a sequence ignores its actions, whatever they are.",
    leniency="a client has no reason to send actions that do not exist",
    needs=(a_world_can_be_joined,),
    tells="ignores_first_actions",
)
def the_first_step_ignores_its_actions(trial: Trial) -> None:
    """Begin a sequence with a step that sends an unknown action.

    A violation is a warning because only a faulty client sends an unknown action. Another check
    covers valid actions.
    """
    agent = trial.join()
    agent.step(agent.nonsense(), expected="a first step, regardless of the actions sent")


@_of_specs(
    "The specs are a complete list of the observations that can be requested.",
    leniency=_UNKNOWN_IS_A_MISTAKE,
    needs=(a_failed_request_is_answered,),
    otherwise="unknown observations are not refused",
)
def unknown_observations_are_refused(trial: Trial) -> None:
    """Request an unknown observation UID alone, and together with valid UIDs.

    A violation is a warning because the documents make the client responsible for sending valid
    requests ("Streaming").
    """
    agent = trial.join()
    uids = sorted(agent.specs.observations)
    unknown = unknown_uid(uids)
    for requested in ([unknown], [*uids, unknown], [2**64 - 1]):
        trial.recover(agent)
        agent.run()
        agent.refuse_step("an error, because there is no such observation", requested=requested)


@_of_specs(
    "The specs are a complete list of the actions.",
    leniency=_UNKNOWN_IS_A_MISTAKE,
    needs=(a_failed_request_is_answered,),
    otherwise="unknown actions are not refused",
    tells="refuses_unknown_actions",
)
def unknown_actions_are_refused(trial: Trial) -> None:
    """Send an unknown action UID in a sequence, alone and together with valid UIDs.

    A violation is a warning because the documents make the client responsible for sending valid
    requests ("Streaming").
    """
    agent = trial.run()
    agent.refuse_step("an error, because there is no such action", agent.nonsense())
    trial.recover(agent)
    agent.run()
    actions = {**agent.valid_actions(), **agent.nonsense()}
    agent.refuse_step("an error, because one of the actions is unknown", actions)


@_of_errors(
    "After an error that is not fatal, the client can continue.",
    leniency="a server may close the stream after an error that it considers fatal",
    needs=(a_failed_request_is_answered,),
    otherwise="errors end the stream",
    tells="survives_errors",
)
def the_stream_survives_errors(trial: Trial) -> None:
    """Cause errors before and after joining a world, each on its own connection.

    A violation is a warning because the server decides which errors are fatal, and is allowed to
    close the stream after a fatal error.
    """
    refused = 0
    for probe, request, expected in _invalid_requests(trial):
        try:
            answer = probe.ask(request, expected)
        except ViolationError:
            continue  # Another check reports it.
        if _is_error(answer):
            refused += 1
            probe.send(dm_env_rpc_pb2.LeaveWorldRequest())
            try:
                probe.receive("an answer after an error, because the stream is still open")
            except ViolationError as violation:
                raise ViolationError(
                    violation.expected, violation.sent, violation.received
                ) from None
        probe.close()
    if not refused:
        raise NotOfferedError("no request was refused")


@reference(
    "ResetRequest/Response",
    "A Reset is carried out; a server without it answers with the code UNIMPLEMENTED.",
    otherwise="a Reset is refused",
    tells="takes_resets",
)
def a_reset_is_taken(trial: Trial) -> None:
    """Send a Reset with the configured settings before the first sequence.

    A violation is an error because a client cannot distinguish a server without Reset from a server
    that cannot reset now.
    """
    trial.join().reset()


@reference(
    "ResetWorldRequest/Response",
    "A ResetWorld is carried out; a server without it answers with the code UNIMPLEMENTED.",
    otherwise="a ResetWorld is refused",
)
def a_reset_world_is_taken(trial: Trial) -> None:
    """Send a ResetWorld for a world with one agent, before the agent's first sequence.

    A violation is an error because a client cannot distinguish a server without ResetWorld from a
    server that cannot reset now.
    """
    agent = trial.join()
    request = trial.reset_world_request(agent.world_name)
    agent.probe.accept(request, "a ResetWorldResponse, because there is no other agent")


@overview(
    "Protocol overview",
    "Each request gets exactly one answer.",
    needs=(a_world_can_be_joined,),
    otherwise="a request may get several answers",
)
def one_answer_for_each_request(trial: Trial) -> None:
    """Send valid and invalid requests, and check that each gets only one answer.

    A violation is an error because answers are not numbered, so a client mistakes an extra answer
    for the answer to its next request.
    """
    agent = trial.join()
    probe = agent.probe
    agent.run()
    if trial.facts.survives_errors:
        agent.reset_if_offered()
    agent.step(requested=agent.specs.observations)
    agent.leave()
    _expect_silence(trial, probe, "nothing more, because every request has its answer")
    if trial.facts.survives_errors and _is_error(probe.ask(dm_env_rpc_pb2.StepRequest())):
        _expect_silence(trial, probe, "nothing more after an error")


def _expect_silence(trial: Trial, probe: Probe, expected: str) -> None:
    if probe.has_answer(trial.options.quiet_seconds):
        received = describe(probe.receive(expected))
        raise probe.violation(expected, f"one more answer: {received}")


@_of_errors(
    "A failed request can be treated as a no-op, so that the client can retry.",
    leniency="a server can treat a failed request as a no-op, but need not",
    needs=(
        the_stream_survives_errors,
        one_answer_for_each_request,
        unknown_observations_are_refused,
        unknown_actions_are_refused,
    ),
    otherwise="errors are not no-ops",
    tells="errors_are_no_ops",
)
def an_error_changes_no_state(trial: Trial) -> None:
    """Cause an error in each state, then check whether actions are ignored.

    Actions are ignored only in the first step of a sequence, which reveals the state.

    A violation is a warning because the documents allow the server to treat a recoverable error as
    a no-op, but do not require it.
    """
    agent = trial.join()
    unknown = [unknown_uid(agent.specs.observations)]
    expected = "an error for an unknown observation"
    agent.refuse_step(expected, requested=unknown)
    agent.begin("a first step, because the refused one did not begin the sequence")
    agent.refuse_step(expected, requested=unknown)
    agent.check_is_running("the refused step did not end the sequence")
    agent.step(expected="a StepResponse to the valid actions, after errors")
    agent.run()
    again = trial.join_request(agent.world_name)
    if _is_error(agent.probe.ask(again, "an answer to a second JoinWorld")):
        agent.check_is_running("the refused JoinWorld did not end the sequence")


@_of_errors(
    "A request that fails for any reason is answered with an error.",
    leniency="a client sends no request without a payload",
    needs=(a_failed_request_is_answered,),
    tells="refuses_empty_requests",
)
def a_request_without_payload_is_refused(trial: Trial) -> None:
    """Send an EnvironmentRequest without a payload.

    A violation is a warning because only a faulty client sends a request without a payload.
    """
    probe = trial.connect()
    probe.send(None)
    expected = "an error for a request without a payload"
    response = probe.receive(expected)
    if response.WhichOneof("payload") != "error":
        raise probe.violation(expected, response)
    if trial.facts.errors_are_no_ops:
        probe.ask(dm_env_rpc_pb2.LeaveWorldRequest(), "an answer to a LeaveWorld, after the error")
