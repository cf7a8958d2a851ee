"""States: how sequences begin, continue and end, and the effect of a Reset."""

from __future__ import annotations

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.check import overview, reference
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import describe
from dm_env_rpc_client.compliance.probe_agent import ProbeAgent
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.protocol import lifecycle
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.tensors.settings import pack_settings

_STEP = "StepRequest/Response"
_RESET = "ResetRequest/Response"
_WINDOW = 8
"""The number of steps that are pending at once."""


@reference(_STEP, "The first step of a sequence leads to RUNNING; its actions are ignored.")
def the_first_step_ignores_its_actions(trial: Trial) -> None:
    """Begins with an unknown action, which the second step must refuse."""
    agent = trial.join()
    agent.begin("a first step whose actions are ignored")
    agent.check_is_running("this is the second step of the sequence")


@overview("States", "Each state leads to some states only.")
def states_follow_each_other(trial: Trial) -> None:
    """Steps to the end of a sequence and into the next."""
    agent = trial.join()
    if not agent.run_to_the_end():
        raise NotOfferedError(_endless(trial))
    agent.begin("a first step after the end of a sequence, whose actions are ignored")
    agent.check_is_running("a sequence has begun")


def _endless(trial: Trial) -> str:
    return f"no sequence ended within {trial.options.max_steps} steps"


@reference(_STEP, "The last step of a sequence returns observations too.")
def the_last_step_returns_observations(trial: Trial) -> None:
    """Requests everything in each step until the end."""
    agent = trial.join()
    uids = agent.specs.observations
    agent.run()
    for _ in range(trial.options.max_steps):
        response = agent.step(requested=uids)
        if set(response.observations) != set(uids):
            raise agent.probe.violation(f"observations {sorted(uids)}", describe(response))
        if agent.state is not State.RUNNING:
            return
    raise NotOfferedError(_endless(trial))


@reference(_STEP, "Pending steps may be processed in the next sequence.")
def sequences_end_and_begin_while_steps_are_in_flight(trial: Trial) -> None:
    """Keeps several steps pending beyond the end of a sequence."""
    agent = trial.join()
    agent.valid_actions()
    ends = 0
    sent = answered = 0
    while answered < sent or (ends < 2 and sent < trial.options.max_steps):
        if sent - answered < _WINDOW and ends < 2 and sent < trial.options.max_steps:
            agent.probe.send(agent.request())
            sent += 1
            continue
        agent.took(agent.probe.accepted("step", "a StepResponse, in this sequence or the next"))
        answered += 1
        ends += agent.state is not State.RUNNING
    if not ends:
        raise NotOfferedError(_endless(trial))


@reference(_RESET, "A pending Reset takes effect between the steps around it.")
def a_reset_in_flight_ends_the_sequence(trial: Trial) -> None:
    """Sends a step, a Reset and a first step without waiting."""
    agent = trial.join()
    agent.run()
    reset = dm_env_rpc_pb2.ResetRequest(settings=pack_settings(trial.options.reset_settings))
    for request in (agent.request(), reset, agent.request(agent.nonsense())):
        agent.probe.send(request)
    agent.probe.accepted("step", "a StepResponse before the Reset")
    refusal = None
    try:
        agent.adopt(agent.probe.accepted("reset", "a ResetResponse").specs)
    except NotOfferedError as error:
        refusal = error
    last = agent.probe.answer("step", "the answer to the last step")
    if refusal is not None:
        raise refusal
    agent.state = State.INTERRUPTED
    if not isinstance(last, dm_env_rpc_pb2.StepResponse):
        raise agent.probe.violation(
            "a first step, because it follows a Reset; its actions are ignored", describe(last)
        )
    agent.took(last)


def _check_same(agent: ProbeAgent, before: dm_env_rpc_pb2.ActionObservationSpecs) -> None:
    if agent.specs != before:
        raise agent.probe.violation(
            f"the same specs as before: {describe(before)}", describe(agent.specs)
        )


def _plain_reset(agent: ProbeAgent) -> None:
    """A Reset without settings."""
    answer = agent.probe.accept(dm_env_rpc_pb2.ResetRequest(), "a ResetResponse")
    if agent.state is State.RUNNING:
        agent.state = State.INTERRUPTED
    agent.adopt(answer.specs)


@reference(_RESET, "The specs are sent again even if nothing has changed.")
def a_reset_sends_the_specs_again(trial: Trial) -> None:
    """Resets in a sequence and between two; the sent specs must be valid for the next steps."""
    agent = trial.join()
    joined = agent.specs
    agent.reset()
    agent.begin("a first step")
    agent.reset()
    for kind in ("actions", "observations"):
        if getattr(joined, kind) and not getattr(agent.specs, kind):
            raise agent.probe.violation(f"specs of {kind}", describe(agent.specs))
    if not trial.options.reset_settings and agent.specs != joined:
        _check_same(agent, joined)
    agent.step(requested=agent.observations, expected="a step with the specs of the Reset")
    agent.step(requested=agent.observations, expected="a step with the specs of the Reset")


@reference(_RESET, "A Reset without settings is a no-op while no sequence is running.")
def a_reset_between_sequences_changes_nothing(trial: Trial) -> None:
    """Resets twice before the first sequence and twice after a Reset."""
    agent = trial.join()
    joined = agent.specs
    for _ in range(2):
        _plain_reset(agent)
        _check_same(agent, joined)
    agent.begin("a first step after Resets that changed nothing")
    _plain_reset(agent)
    between = agent.specs
    for _ in range(2):
        _plain_reset(agent)
        _check_same(agent, between)
    agent.begin("a first step after Resets that changed nothing")
    agent.check_is_running("a sequence has begun")


@reference(_RESET, "After a Reset the next step begins a sequence; its actions are ignored.")
def a_reset_ends_the_sequence(trial: Trial) -> None:
    """Resets in the middle of a sequence."""
    agent = trial.join()
    agent.run()
    agent.reset()
    agent.begin("a first step after the Reset, whose actions are ignored")
    agent.check_is_running("the sequence after the Reset has begun")


@reference(_RESET, "Settings of a Reset are those for the agent's next sequence.")
def reset_settings_are_taken(trial: Trial) -> None:
    """Resets with them in a sequence and between two, and steps with the new specs."""
    if not trial.options.reset_settings:
        raise NotOfferedError("no reset settings were given")
    agent = trial.join()
    agent.reset()
    agent.step(requested=agent.observations)
    agent.reset()
    agent.reset()
    agent.step(requested=agent.observations)
    agent.step(requested=agent.observations)


@reference(_RESET, "Invalid settings are refused.")
def invalid_reset_settings_are_refused(trial: Trial) -> None:
    """Sends each one; the sequence continues."""
    invalid = pack_settings(trial.options.invalid_reset_settings)
    if not invalid:
        raise NotOfferedError("no invalid reset settings were given")
    agent = trial.join()
    agent.run()
    for name, tensor in invalid.items():
        request = dm_env_rpc_pb2.ResetRequest(settings={name: tensor})
        agent.probe.refuse(request, f"an error, because the setting {name!r} is invalid")
        agent.check_is_running("the refused Reset did not end the sequence")


@overview("States", "A joined agent has one of three states after a step.")
def states_are_those_of_the_protocol(trial: Trial) -> None:
    """Checks the number of the state in each of some steps."""
    agent = trial.join()
    for _ in range(min(trial.options.max_steps, 24)):
        before = agent.state
        response = agent.step()
        allowed = {state.number for state in lifecycle.next_states(before, "step")}
        if response.state not in allowed:
            raise agent.probe.violation(f"one of the states {allowed}", describe(response))
