"""Runs checks against a server, in the order of `CHECKS`.

A check is skipped if it needs more clients at once than the server accepts (`clients_at_once.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Iterable, Iterator
from types import ModuleType
from typing import Any

from dm_env_rpc_client.client import server_ends
from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.checks import (
    actions,
    foundations,
    observations,
    properties,
    sequences,
    streaming,
    world_independence,
    worlds,
)
from dm_env_rpc_client.compliance.clients_at_once import count_connections, count_joins
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import (
    Facts,
    NotOfferedError,
    Outcome,
    Result,
    ViolationError,
)
from dm_env_rpc_client.compliance.probe import END, Probe
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import DmEnvRpcClientError, SpecError

_MODULES = (
    foundations,
    worlds,
    world_independence,
    observations,
    actions,
    sequences,
    streaming,
    properties,
)


def _rows(module: ModuleType) -> tuple[Check, ...]:
    """Return the checks that a module defines, without the prerequisites that it imports."""
    return tuple(
        row
        for row in vars(module).values()
        if isinstance(row, Check) and row.function.__module__ == module.__name__
    )


FOUNDATIONS: tuple[Check, ...] = _rows(foundations)
"""The checks that run first, because other checks depend on them."""

CHECKS: tuple[Check, ...] = tuple(row for module in _MODULES for row in _rows(module))
"""All checks, ordered by subject."""


_DEFAULTS = Options()

_BY_NAME = {check.name: check for check in CHECKS}

_ALIVE_SECONDS = 2.0
"""The time limit, in seconds, for an unresponsive server to answer on a new connection."""


class Suite:
    """A run of the checks against one server, in which checks share their findings.

    Args:
      address: the address of the server, such as "localhost:50051".
      options: how to use the server.
    """

    def __init__(self, address: str, options: Options = _DEFAULTS):
        self._address = address
        self._options = options
        self._results: dict[str, Result] = {}
        # Breaks cycles: a check that waits for another must not be run by it again.
        self._running: list[Check] = []
        # The check that reports the cause, by the name of the check that encountered it.
        self._causes: dict[str, Check] = {}
        # The first check in which the server ended a stream, by kind of request and error text.
        self._ends: dict[tuple[str, str], Check] = {}
        self._reported: set[str] = set()
        self._gone: Check | None = None
        # The last check with an unanswered request after which the server was still usable.
        self._suspect: Check | None = None
        told = "the options say so" if options.several_agents is False else ""
        self._facts = Facts(options.connections, one_agent=told)

    def results(self, check: Check, asked_later: Collection[str] = ()) -> Iterator[Result]:
        """Run a check and its prerequisites, unless they have run already.

        Args:
          check: the check.
          asked_later: the names of checks whose results are left for later calls.

        Yields:
          The findings that cause the check to be skipped, each once per suite; then the check's own
          result, unless it was yielded before.

        Raises:
          SpecError: an action of the policy does not conform to its spec, or the server is on
            another machine and `insecure` is False.
        """
        self._run_foundations()
        result = self._result(check)
        found = self._findings(check) if result.outcome is Outcome.SKIPPED else []
        for each in (*found, check):
            is_left = each is not check and each.name in asked_later
            if not is_left and each.name not in self._reported:
                self._reported.add(each.name)
                yield self._results[each.name]

    def _run_foundations(self) -> None:
        for check in FOUNDATIONS:
            if check.name in self._results:
                continue
            result = self._result(check)
            if check is foundations.the_server_can_be_checked and not result.is_finding:
                self._facts = count_connections(self._address, self._options, self._facts)
            if check is FOUNDATIONS[-1] and self._gone is None:
                joined = self._results[foundations.a_world_can_be_joined.name]
                if joined.outcome is Outcome.PASSED:
                    self._facts = count_joins(self._address, self._options, self._facts)

    def _result(self, check: Check) -> Result:
        """Return the result of a check, running it at most once and only if nothing blocks it."""
        if check.name not in self._results:
            self._running.append(check)
            try:
                blocker = self._blocker(check)
                if blocker is None:
                    self._results[check.name] = self._run(check)
                else:
                    self._results[check.name] = _result(check, Outcome.SKIPPED, reason=blocker)
            finally:
                self._running.pop()
        return self._results[check.name]

    def _blocker(self, check: Check) -> str | None:
        """Return why a check cannot run, or None if it can."""
        found = self._findings(check)
        if self._gone is not None:
            return _is_gone_since(self._gone)
        if found:
            return f"{found[0].otherwise or found[0].clause} ({found[0].name})"
        return self._facts.lack(check.takes, self._options.companions)

    def _findings(self, check: Check) -> list[Check]:
        """Return the checks whose findings block a check, in the order in which they ran."""
        found: list[Check] = []
        visited = {check.name}
        waiting = self._builds_on(check)
        while waiting and self._gone is None:
            need = waiting.pop(0)
            if need.name in visited or need in self._running:
                continue
            visited.add(need.name)
            if self._result(need).is_finding:
                found.append(need)
            else:
                waiting = self._builds_on(need) + waiting
        return found if self._gone is None else [self._gone]

    def _builds_on(self, check: Check) -> list[Check]:
        """Return a check's prerequisites, and any other check that explains its violation.

        The dependencies can have cycles, because any check can be the cause of another finding.
        """
        cause = self._causes.get(check.name)
        return [*_needs(check), *([cause] if cause else [])]

    def _run(self, check: Check) -> Result:
        started = time.monotonic()
        result = self._outcome(check)
        return dataclasses.replace(result, seconds=time.monotonic() - started)

    def _outcome(self, check: Check) -> Result:
        trial = Trial(self._address, self._options, self._facts)
        try:
            with trial:
                check.function(trial)
        except NotOfferedError as error:
            return _result(check, Outcome.SKIPPED, reason=str(error))
        except ViolationError as violation:
            if self._is_reported_by_another(check, violation):
                return _result(check, Outcome.SKIPPED, reason=self._blocker(check) or "")
            return self._finding(check, violation, trial.was_answered)
        except SpecError:
            raise
        except DmEnvRpcClientError as error:
            lost = ViolationError("a connection", "", str(error), is_unanswered=True)
            return self._finding(check, lost, trial.was_answered)
        self._suspect = None
        if check.tells:
            told: dict[str, Any] = {check.tells: True}
            self._facts = self._facts._replace(**told)
        return _result(check, Outcome.PASSED)

    def _is_reported_by_another(self, check: Check, violation: ViolationError) -> bool:
        """Return whether a simpler check, or a check of the violated clause, reports the cause."""
        if check is foundations.the_server_can_be_checked:
            return False  # All others need it.
        others = [*check.explained_by, *(_BY_NAME[name] for name in violation.concerns)]
        if violation.is_unanswered:
            others = self._known_causes(check, violation)
        for other in others:
            if other in self._running:
                continue
            if self._result(other).is_finding or self._findings(other):
                self._causes[check.name] = other
                return True
        return False

    def _known_causes(self, check: Check, violation: ViolationError) -> list[Check]:
        """Return the completed checks that can explain a missing answer.

        No further check is run, because the server might be gone. If the server ended the stream,
        the result includes the first check in which a request of the same kind ended the stream
        with the same error text.
        """
        known = [other for other in check.explained_by if other.name in self._results]
        if violation.received.startswith(END):
            request = violation.sent.rpartition("; ")[2].partition(" ")[0]
            earlier = self._ends.setdefault((request, violation.received), check)
            known += [earlier] if earlier is not check else []
        return known if known and self._fault() is None else []

    def _finding(self, check: Check, violation: ViolationError, was_answered: bool) -> Result:
        received = violation.received
        outcome = Outcome.WARNED if check.leniency else Outcome.FAILED
        if violation.is_unanswered:
            outcome = Outcome.FAILED
            is_first = check is foundations.the_server_can_be_checked
            # Without a world, the server is not asked again; if this process launched it, it may
            # have ended.
            fault = self._end(violation) if is_first else self._fault()
            if fault is None:
                self._suspect = check
            elif self._suspect is not None and not was_answered:
                return self._died_before(check, self._suspect, fault)
            else:
                self._gone = check
                received = _and_since_then(received, fault)
        elif self._options.strict:
            outcome = Outcome.FAILED
        return _result(
            check,
            outcome,
            reason=check.leniency if outcome is Outcome.WARNED else "",
            sent=violation.sent,
            received=received,
            expected=violation.expected,
        )

    def _died_before(self, check: Check, suspect: Check, fault: str) -> Result:
        """Skip a check that got no answer because the server died after the check `suspect` failed.

        A request of `suspect` was not answered, but afterwards the server still answered on a new
        connection.
        """
        self._gone = suspect
        found = self._results[suspect.name]
        self._results[suspect.name] = dataclasses.replace(
            found, received=_and_since_then(found.received, fault)
        )
        return _result(check, Outcome.SKIPPED, reason=_is_gone_since(suspect))

    def _fault(self) -> str | None:
        """Return why the server is unusable, or None if it is usable."""
        timeout = min(self._options.timeout, _ALIVE_SECONDS)
        try:
            with contextlib.closing(
                Probe(self._address, timeout, self._options.security())
            ) as probe:
                if self._facts.answers_leave and not probe.is_answered():
                    return "no answer on a new connection"
        except DmEnvRpcClientError as error:
            return self._end(error) or f"no connection: {error}"
        return None

    def _end(self, error: BaseException) -> str | None:
        """Return how the server ended, if this process launched it and it has ended."""
        lost = error.__cause__ if isinstance(error, ViolationError) else error
        end = None if lost is None else server_ends.end_of(self._address, lost)
        return None if end is None else str(end)


def _is_gone_since(check: Check) -> str:
    return f"the server is gone since {check.name}"


def _and_since_then(received: str, fault: str) -> str:
    return f"{received}; and since then {fault}"


def _needs(check: Check) -> tuple[Check, ...]:
    preflight = foundations.the_server_can_be_checked
    return check.needs if check is preflight else (preflight, *check.needs)


def _result(check: Check, outcome: Outcome, **details: Any) -> Result:
    return Result(check.name, outcome, check.document, check.heading, check.clause, **details)


def run(
    address: str, options: Options = _DEFAULTS, checks: Iterable[Check] = CHECKS
) -> Iterator[Result]:
    """Run checks one by one against a server, with prerequisites first.

    Args:
      address: the address of the server, such as "localhost:50051".
      options: how to use the server.
      checks: the checks to run; all by default.

    Yields:
      The result of each check, as soon as it has ended. A finding that causes a check to be skipped
      is yielded before that check, even if the finding's check is not among `checks`.
    """
    suite = Suite(address, options)
    for check in checks:
        yield from suite.results(check)
