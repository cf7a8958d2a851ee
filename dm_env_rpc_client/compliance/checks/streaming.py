"""Checks that each request gets one answer, in order and of the right kind, including errors."""

from __future__ import annotations

import functools

from google.protobuf import any_pb2
from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview
from dm_env_rpc_client.compliance.checks.foundations import (
    a_failed_request_is_answered,
    an_error_changes_no_state,
    one_answer_for_each_request,
    the_stream_survives_errors,
)
from dm_env_rpc_client.compliance.checks.observations import (
    nothing_is_returned_unless_requested,
)
from dm_env_rpc_client.compliance.checks.sequences import (
    states_follow_each_other,
    the_last_step_returns_observations,
)
from dm_env_rpc_client.compliance.checks.worlds import step_and_reset_need_a_join
from dm_env_rpc_client.compliance.probe import unknown_uid
from dm_env_rpc_client.compliance.trial import Trial

_of_protocol = functools.partial(overview, "Protocol overview")
_of_streaming = functools.partial(overview, "Streaming")

_DEPTH = 16
"""The number of requests that are pending at once."""

_LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()


@_of_streaming(
    "Requests sent without waiting are answered in order.",
    needs=(nothing_is_returned_unless_requested, the_last_step_returns_observations),
)
def pipelined_steps_are_answered_in_order(trial: Trial) -> None:
    """Request different observations in each of many steps and compare the answers.

    A violation is an error because a client matches an answer to the wrong request.
    """
    agent = trial.run()
    uids = sorted(agent.specs.observations)
    asked = [uids[: number % (len(uids) + 1)] for number in range(_DEPTH)]
    for requested in asked:
        agent.probe.send(agent.request(requested=requested))
    for requested in asked:
        response = agent.took(agent.probe.accepted("step", f"observations {requested}"))
        if sorted(response.observations) != requested:
            raise agent.probe.violation(
                "answers in the order of the requests; the next must have observations "
                f"{requested}",
                response,
            )


@_of_protocol(
    "An answer is of the request's own kind, or an error.",
    needs=(
        one_answer_for_each_request,
        the_stream_survives_errors,
        pipelined_steps_are_answered_in_order,
    ),
    explained_by=(an_error_changes_no_state,),
)
def answers_are_of_the_requests_kind(trial: Trial) -> None:
    """Send one request of each kind without waiting for answers. Any of them can be refused.

    A violation is an error because a client cannot read the answer.
    """
    agent = trial.join()
    name = agent.world_name
    requests = (
        trial.join_request(name),
        agent.request(),
        dm_env_rpc_pb2.ResetRequest(),
        agent.request(requested=agent.specs.observations),
        dm_env_rpc_pb2.DestroyWorldRequest(world_name=name),
        dm_env_rpc_pb2.ResetWorldRequest(world_name=name),
        _LEAVE,
        _LEAVE,
        dm_env_rpc_pb2.StepRequest(),
    )
    for field in [agent.probe.send(request) for request in requests]:
        agent.probe.answer(field, f"the answer to the {field} request, in order")


@_of_streaming(
    "Requests sent without waiting are processed in order.",
    needs=(
        an_error_changes_no_state,
        step_and_reset_need_a_join,
        pipelined_steps_are_answered_in_order,
    ),
)
def pipelined_requests_take_effect_in_order(trial: Trial) -> None:
    """Leave and rejoin without waiting, and check that only the step in between is refused.

    A violation is an error because requests take effect in a different order than the client
    expects.
    """
    agent = trial.join()
    step = agent.request()
    for request in (step, _LEAVE, step, trial.join_request(agent.world_name), step):
        agent.probe.send(request)
    agent.probe.accepted("step", "a StepResponse before the LeaveWorld")
    agent.probe.accepted("leave_world", "a LeaveWorldResponse")
    agent.probe.refused("step", "an error, because the step comes after the LeaveWorld")
    agent.probe.accepted("join_world", "a JoinWorldResponse after the LeaveWorld")
    agent.probe.accepted("step", "a StepResponse after the JoinWorld")


@_of_streaming(
    "If one of several pending requests fails, the others do not.",
    needs=(
        an_error_changes_no_state,
        states_follow_each_other,
        pipelined_steps_are_answered_in_order,
    ),
)
def an_error_fails_its_own_request_only(trial: Trial) -> None:
    """Send steps, and request an unknown observation in every other one.

    A violation is an error because a client loses valid requests.
    """
    agent = trial.run()
    unknown = unknown_uid(agent.specs.observations)
    for number in range(_DEPTH):
        agent.probe.send(agent.request(requested=[unknown] if number % 2 else []))
    for number in range(_DEPTH):
        if number % 2:
            agent.probe.refused("step", f"an error, because there is no observation {unknown}")
        else:
            agent.took(agent.probe.accepted("step", "a StepResponse for the valid step"))


@overview(
    "Errors",
    "An error describes what is wrong.",
    leniency="the server decides which codes and messages it sends",
    needs=(a_failed_request_is_answered,),
)
def errors_have_a_code_and_a_message(trial: Trial) -> None:
    """Check the Status of requests that should fail.

    A violation is a warning because the server chooses codes and messages. Without them, a client
    recognizes the error but cannot report its cause.
    """
    probe = trial.connect()
    for request in (
        dm_env_rpc_pb2.StepRequest(),
        dm_env_rpc_pb2.JoinWorldRequest(world_name=trial.options.unknown_world_name),
    ):
        probe = trial.usable(probe)
        status = probe.ask(request, "an error Status")
        if not isinstance(status, status_pb2.Status):
            continue  # Another check reports it.
        if status.code == 0 or not status.message:
            raise probe.violation("an error with a message and a code other than OK (0)", status)


@_of_protocol(
    "An extension is answered by an extension, or an error.", needs=(a_failed_request_is_answered,)
)
def an_unknown_extension_is_answered(trial: Trial) -> None:
    """Send an extension message of an unknown type.

    A violation is an error because a client sends such a request to find out whether the server
    supports an extension.
    """
    probe = trial.connect()
    request = any_pb2.Any(type_url="type.googleapis.com/compliance.Unknown", value=b"\x08\x01")
    probe.ask(request, "an answer to an unknown extension")
    trial.usable(probe).ask(_LEAVE, "an answer to a LeaveWorld, after the extension")
