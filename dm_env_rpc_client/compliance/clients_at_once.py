"""Number of clients that a server accepts at once: on connections, in a world, in worlds.

It is found out and not checked, since the documents leave it to the server ("Protocol overview").
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
"""Time limit, in seconds, for a server to answer a further client; some never answer it."""


def count_connections(address: str, options: Options, facts: Facts) -> Facts:
    """Count the connections on which the server answers, up to the number needed by checks.

    Returns:
      The facts with `connections`, which is 0 if there are as many, and `answers_leave`.
    """
    answering: list[Probe] = []
    timeout = min(options.timeout, _COUNTED_SECONDS)
    # Two agents in worlds of their own, with companions, is the most that a check takes.
    wanted = 1 if options.connections else 2 * (1 + options.companions)
    with contextlib.ExitStack() as stack, contextlib.suppress(DmEnvRpcClientError):
        while True:
            if len(answering) >= wanted:
                break
            probe = Probe(address, timeout, options.security())
            stack.callback(probe.close)
            # Where the first is not refused a LeaveWorld, a further one has no room.
            if not probe.is_answered() or (
                bool(answering) and probe.was_refused > answering[0].was_refused
            ):
                break
            # Some servers end the earlier connection instead.
            if answering and not answering[0].is_answered():
                break
            answering.append(probe)
    is_known = options.connections or len(answering) == wanted
    return facts._replace(
        connections=options.connections if is_known else len(answering),
        answers_leave=bool(answering),
    )


def count_joins(address: str, options: Options, facts: Facts) -> Facts:
    """Find out whether a second client can join: the world of the first, or one of its own.

    Returns:
      The facts with why it cannot: `one_client`, `one_agent` or `one_joined`.
    """
    has_room = facts.lack(Takes(connections=2), options.companions) is None
    # If the options promise several agents, they are checked, not counted.
    if options.several_agents or not has_room:
        return facts
    one_agent = one_joined = ""
    # If it is a violation that this fails, a check will find it.
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
    """Send two requests that are refused for reasons of their own.

    Returns:
      For each the code and the message, or None if it was not refused. Both are the same if the
      server refuses the client, whatever it sends.
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
    """Join, and return why that was refused; "" if it was not.

    Some servers do not answer until the first client has left.
    """
    timeout = min(trial.options.timeout, _COUNTED_SECONDS)
    field = probe.send(trial.join_request(world_name))
    if not probe.has_answer(timeout):
        probe.close()
        return f"no answer within {timeout:g} s"
    answer = probe.answer(field, "an answer")
    return (answer.message or "without a reason") if isinstance(answer, status_pb2.Status) else ""
