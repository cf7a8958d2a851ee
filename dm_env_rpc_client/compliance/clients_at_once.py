"""Measures how many clients a server accepts at once, in the same world and in separate worlds.

The number of clients is measured but not checked, because the protocol documents ("Protocol
overview") let each server choose it.
"""

from __future__ import annotations

import contextlib

from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import Facts, NotOfferedError, Takes, ViolationError
from dm_env_rpc_client.compliance.probe import Probe
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import DmEnvRpcClientError

_COUNTED_SECONDS = 5.0
"""The time limit, in seconds, for the server to answer an additional client."""


def count_connections(address: str, options: Options, facts: Facts) -> Facts:
    """Count the simultaneous connections that the server answers, up to the number needed.

    Returns:
      The facts with `answers_leave` and `connections`, which is the number in the options if one
      is given, otherwise the counted limit, or 0 if no limit was found.
    """
    answering: list[Probe] = []
    timeout = min(options.timeout, _COUNTED_SECONDS)
    # No check needs more than two agents in separate worlds, each with its companions.
    wanted = 1 if options.connections else 2 * (1 + options.companions)
    with contextlib.ExitStack() as stack, contextlib.suppress(DmEnvRpcClientError):
        while True:
            if len(answering) >= wanted:
                break
            probe = Probe(address, timeout, options.security())
            stack.callback(probe.close)
            # If the first LeaveWorld was accepted and this one refused, the server has no room.
            if not probe.is_answered() or (
                bool(answering) and probe.was_refused > answering[0].was_refused
            ):
                break
            # Some servers close the earlier connection instead of refusing this one.
            if answering and not answering[0].is_answered():
                break
            answering.append(probe)
    is_known = options.connections or len(answering) == wanted
    return facts._replace(
        connections=options.connections if is_known else len(answering),
        answers_leave=bool(answering),
    )


def count_joins(address: str, options: Options, facts: Facts) -> Facts:
    """Determine whether a second client can join the first client's world or one of its own.

    Returns:
      The facts; if the second client cannot join, `one_client`, `one_agent` or `one_joined`
      contains the reason.
    """
    has_room = facts.lack(Takes(connections=2), options.companions) is None
    # A promise of several agents is for the checks to test.
    if options.several_agents or not has_room:
        return facts
    one_agent = one_joined = ""
    # A failure that breaks a rule is reported by the check of that rule.
    with (
        contextlib.suppress(ViolationError, NotOfferedError, DmEnvRpcClientError),
        Trial(address, options, facts) as trial,
    ):
        alone = _refusals(trial, trial.connect())
        trial.clean_up()
        name, other = trial.join().world_name, trial.connect()
        beside = _refusals(trial, other)
        if len(set(alone)) > 1 and len(set(beside)) == 1 and beside[0] is not None:
            return facts._replace(one_client=beside[0][1] or "without a reason")
        other = trial.usable(other)
        one_agent = _refusal(trial, other, name)
        if one_agent:
            other = trial.usable(other)
            one_joined = _refusal(trial, other, trial.create_another_world(other))
    return facts._replace(one_agent=facts.one_agent or one_agent, one_joined=one_joined)


def _refusals(trial: Trial, probe: Probe) -> list[tuple[int, str] | None]:
    """Send two requests that a server has different reasons to refuse.

    Returns:
      The code and message of each refusal; None for an accepted request. Equal refusals mean that
      the server refuses the client itself.
    """
    refusals: list[tuple[int, str] | None] = []
    for request in (
        dm_env_rpc_pb2.StepRequest(),
        dm_env_rpc_pb2.JoinWorldRequest(world_name=trial.options.unknown_world_name),
    ):
        probe = trial.usable(probe)
        try:
            answer = probe.ask(request)
        except ViolationError as violation:
            refusals.append((0, violation.received))
            probe.close()
        else:
            refused = isinstance(answer, status_pb2.Status)
            refusals.append((answer.code, answer.message) if refused else None)
            if not refused:  # The server may have joined the client to a world of another name.
                probe.ask(dm_env_rpc_pb2.LeaveWorldRequest())
    return refusals


def _refusal(trial: Trial, probe: Probe, world_name: str) -> str:
    """Join a world, and return the server's reason for refusing, or "" if it accepts.

    A missing answer counts as a refusal, because some servers answer only after the first client
    has left.
    """
    timeout = min(trial.options.timeout, _COUNTED_SECONDS)
    field = probe.send(trial.join_request(world_name))
    if not probe.has_answer(timeout):
        probe.close()
        return f"no answer within {timeout:g} s"
    answer = probe.answer(field, "an answer")
    return (answer.message or "without a reason") if isinstance(answer, status_pb2.Status) else ""
