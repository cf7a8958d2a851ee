"""Answers: one for each request, in order and of its kind, including errors."""

from __future__ import annotations

from google.protobuf import any_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview
from dm_env_rpc_client.compliance.probe import Probe, describe
from dm_env_rpc_client.compliance.probe_agent import unknown_uid
from dm_env_rpc_client.compliance.trial import Trial

_DEPTH = 16
"""The number of requests that are pending at once."""

_LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()


@overview("Protocol overview", "Each request gets exactly one answer.")
def one_answer_for_each_request(trial: Trial) -> None:
    """Sends valid and invalid requests, and checks that nothing follows their answers."""
    agent = trial.join()
    probe = agent.probe
    agent.run()
    agent.reset_if_offered()
    agent.step(requested=agent.specs.observations)
    agent.leave()
    _expect_silence(trial, probe, "nothing more, because every request has its answer")
    agent.probe.refuse(dm_env_rpc_pb2.StepRequest(), "an error, because nothing is joined")
    _expect_silence(trial, probe, "nothing more after an error")


def _expect_silence(trial: Trial, probe: Probe, expected: str) -> None:
    if probe.has_answer(trial.options.quiet_seconds):
        received = describe(probe.receive(expected))
        raise probe.violation(expected, f"one more answer: {received}")


@overview("Protocol overview", "An answer is of the request's own kind, or an error.")
def answers_are_of_the_requests_kind(trial: Trial) -> None:
    """Sends one request of each kind without waiting; each may be refused or not."""
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
    for request in requests:
        agent.probe.send(request)
    for field in (
        "join_world",
        "step",
        "reset",
        "step",
        "destroy_world",
        "reset_world",
        "leave_world",
        "leave_world",
        "step",
    ):
        agent.probe.answer(field, f"the answer to the {field} request, in order")


@overview("Streaming", "Requests sent without waiting are answered in their order.")
def pipelined_steps_are_answered_in_order(trial: Trial) -> None:
    """Requests different observations in each of many steps and compares the answers."""
    agent = trial.join()
    agent.run()
    uids = sorted(agent.specs.observations)
    asked = [uids[: number % (len(uids) + 1)] for number in range(_DEPTH)]
    for requested in asked:
        agent.probe.send(agent.request(requested=requested))
    for requested in asked:
        response = agent.took(agent.probe.accepted("step", f"observations {requested}"))
        if sorted(response.observations) != requested:
            raise agent.probe.violation(
                f"the answers in order, the next one with observations {requested}",
                describe(response),
            )


@overview("Streaming", "Requests sent without waiting are processed in their order.")
def pipelined_requests_take_effect_in_order(trial: Trial) -> None:
    """Leaves and joins again without waiting: a step in between is refused, others are not."""
    agent = trial.join()
    step = agent.request()
    for request in (step, _LEAVE, step, trial.join_request(agent.world_name), step):
        agent.probe.send(request)
    agent.probe.accepted("step", "a StepResponse before the LeaveWorld")
    agent.probe.accepted("leave_world", "a LeaveWorldResponse")
    agent.probe.refused("step", "an error, because the step comes after the LeaveWorld")
    agent.probe.accepted("join_world", "a JoinWorldResponse after the LeaveWorld")
    agent.probe.accepted("step", "a StepResponse after the JoinWorld")


@overview("Streaming", "If one of several pending requests fails, the others do not.")
def an_error_fails_its_own_request_only(trial: Trial) -> None:
    """Sends steps of which every second one requests an unknown observation."""
    agent = trial.join()
    agent.run()
    unknown = unknown_uid(agent.specs.observations)
    for number in range(_DEPTH):
        agent.probe.send(agent.request(requested=[unknown] if number % 2 else []))
    for number in range(_DEPTH):
        if number % 2:
            agent.probe.refused("step", f"an error, because there is no observation {unknown}")
        else:
            agent.took(agent.probe.accepted("step", "a StepResponse for the valid step"))


@overview("Errors", "An error says what is wrong.")
def errors_have_a_code_and_a_message(trial: Trial) -> None:
    """Checks the Status of requests that must fail."""
    probe = trial.connect()
    for request in (
        dm_env_rpc_pb2.StepRequest(),
        dm_env_rpc_pb2.JoinWorldRequest(world_name=trial.options.unknown_world_name),
    ):
        status = probe.refuse(request, "an error Status")
        if status.code == 0 or not status.message:
            raise probe.violation(
                "an error with a code other than OK (0) and a message", describe(status)
            )


@overview("Errors", "After an error that is not fatal the client can go on.")
def the_stream_survives_errors(trial: Trial) -> None:
    """Causes errors before a join and in a sequence, and continues after each."""
    probe = trial.connect()
    probe.refuse(dm_env_rpc_pb2.StepRequest(), "an error, because nothing is joined")
    probe.refuse(
        dm_env_rpc_pb2.JoinWorldRequest(world_name=trial.options.unknown_world_name),
        "an error, because there is no such world",
    )
    agent = trial.join(probe)
    agent.begin("a StepResponse, after errors")
    agent.refuse_step("an error for an unknown action", agent.nonsense())
    agent.step(expected="a StepResponse, after an error")


@overview("Errors", "A request that fails is a no-op.")
def an_error_changes_no_state(trial: Trial) -> None:
    """Fails in each state; the state shows in whether actions are ignored afterwards."""
    agent = trial.join()
    unknown = [unknown_uid(agent.specs.observations)]
    expected = "an error for an unknown observation"
    agent.refuse_step(expected, requested=unknown)
    agent.begin("a first step, because the refused one did not begin the sequence")
    agent.refuse_step(expected, requested=unknown)
    agent.check_is_running("the refused step did not end the sequence")
    agent.probe.refuse(
        trial.join_request(agent.world_name), "an error, because a world is joined already"
    )
    agent.check_is_running("the refused JoinWorld did not end the sequence")


@overview("Errors", "A request that fails for any reason is answered with an error.")
def a_request_without_payload_is_refused(trial: Trial) -> None:
    """Sends an empty envelope."""
    probe = trial.connect()
    probe.send(None)
    expected = "an error for a request without a payload"
    response = probe.receive(expected)
    if response.WhichOneof("payload") != "error":
        raise probe.violation(expected, describe(response))
    probe.accept(_LEAVE, "a LeaveWorldResponse, after the error")


@overview("Protocol overview", "An extension is answered by an extension, or an error.")
def an_unknown_extension_is_answered(trial: Trial) -> None:
    """Sends a message of an unknown type."""
    probe = trial.connect()
    request = any_pb2.Any(type_url="type.googleapis.com/compliance.Unknown", value=b"\x08\x01")
    probe.ask(request, "an answer to an unknown extension")
    probe.accept(_LEAVE, "a LeaveWorldResponse, after the extension")
