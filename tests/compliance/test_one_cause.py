"""One cause is one finding, however many checks come across it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, run, trial
from tests.compliance import breakage, playground
from tests.compliance.broken_servers import BROKEN
from tests.compliance.one_client_servers import (
    FOUND,
    SKIPPED,
    EndsTheEarlierStream,
    EndsTheStreamWhereTheWorldIsTaken,
    RefusesStepsOfOthers,
)
from tests.reliability.recording import Seen
from tests.support.stopwatch import patience

GATE = (
    # An answer that any check can come across.
    "is terminated twice",
    "has no observations in the last step",
    # A request on whose answer other checks build.
    "answers a leave twice",
    "gives all worlds one name",
    # A request that has several checks.
    "destroys a world in use under agents who step on",
    # A stream that ends.
    "sends what is no message",
    # A rule with several checks.
    "has one environment for all worlds",
    "rewards with nan",
)
"""The others are run with -m slow: each takes as long as the whole suite."""

GATE_OF_ONE_CLIENT = (EndsTheEarlierStream, EndsTheStreamWhereTheWorldIsTaken, RefusesStepsOfOthers)
"""The same of servers that have one client at a time."""


def in_the_gate(classes: Iterable[type[playground.Session]]) -> Any:
    """Parametrizes a test with servers, of which those beside the gate's are slow."""
    return pytest.mark.parametrize(
        "session_class",
        [
            pytest.param(each, marks=() if each in GATE_OF_ONE_CLIENT else pytest.mark.slow)
            for each in classes
        ],
        ids=lambda each: each.__name__,
    )


@pytest.mark.parametrize(
    "wrong",
    [name if name in GATE else pytest.param(name, marks=pytest.mark.slow) for name in BROKEN],
)
def test_a_broken_rule_is_one_finding(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, session_class = BROKEN[wrong]
    # Worlds that are left are of no account: nobody else uses this server.
    monkeypatch.setattr(trial, "_ANSWER_SECONDS", 0.2)
    options = dataclasses.replace(breakage.OPTIONS, timeout=patience(1.0))
    with playground.serve(session_class) as address:
        found = [result for result in run(address, options) if result.is_finding]
    assert [result.name for result in found] == [expected], [str(result) for result in found]


def test_the_servers_of_the_gate_exist() -> None:
    assert set(GATE) <= set(BROKEN)


OPTIONS = Options(timeout=2.0, quiet_seconds=0.05)


@in_the_gate(SKIPPED)
def test_a_server_may_take_one_client(session_class: type[playground.Session]) -> None:
    options = dataclasses.replace(OPTIONS, timeout=patience(OPTIONS.timeout))
    with playground.serve(session_class) as address:
        results = {result.name: result for result in run(address, options)}
    assert [str(result) for result in results.values() if result.is_finding] == []
    for check in CHECKS:
        if check.takes.joined > check.takes.agents:
            assert results[check.name].reason.startswith(SKIPPED[session_class])
    assert sum(result.outcome is Outcome.PASSED for result in results.values()) >= 60


@pytest.mark.row(30)
@in_the_gate(FOUND)
def test_a_server_that_breaks_a_rule_with_a_second_client_is_one_finding(
    session_class: type[playground.Session], seen: Seen
) -> None:
    options = dataclasses.replace(OPTIONS, timeout=patience(OPTIONS.timeout))
    with playground.serve(session_class) as address:
        results = list(run(address, options))
    found = [result for result in results if result.is_finding]
    seen(servers_with_one_cause=1, their_findings=len(found))
    assert [result.name for result in found] == [FOUND[session_class]], [
        str(each) for each in found
    ]
    skipped = [result.reason for result in results if result.outcome is Outcome.SKIPPED]
    assert any(FOUND[session_class] in reason for reason in skipped)
