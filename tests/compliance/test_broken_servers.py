"""The suite notices what is broken: one rule in each of the servers."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from dm_env_rpc_client.compliance import CHECKS, Outcome, run, trial
from tests.compliance import breakage, playground
from tests.compliance.broken_servers import BROKEN
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
    # One client at a time.
    "ends the stream where the world is taken",
    "refuses steps of others",
)
"""The others are run whole with -m slow: each takes as long as the whole suite."""


def test_there_are_forty_or_more() -> None:
    assert len(BROKEN) >= 40
    assert {check for check, _ in BROKEN.values()} <= {check.name for check in CHECKS}
    assert set(GATE) <= set(BROKEN)


@pytest.mark.row(30)
@pytest.mark.parametrize(
    ("wrong", "is_whole"),
    [
        *((wrong, False) for wrong in BROKEN),
        *((wrong, True) for wrong in GATE),
        *(pytest.param(each, True, marks=pytest.mark.slow) for each in BROKEN if each not in GATE),
    ],
)
def test_a_broken_rule_is_one_finding(
    wrong: str, is_whole: bool, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, session_class = BROKEN[wrong]
    # Worlds that are left are of no account: nobody else uses this server.
    monkeypatch.setattr(trial, "_ANSWER_SECONDS", 0.2)
    # The check that is there for it comes first, which saves the time for the others.
    checks = CHECKS if is_whole else sorted(CHECKS, key=lambda check: check.name != expected)
    # Some do not answer, which takes the time; on a busy machine the others are slow to answer.
    options = dataclasses.replace(breakage.OPTIONS, timeout=patience(1.0))
    with playground.serve(session_class) as address:
        results = run(address, options, checks)
        findings = (result for result in results if result.is_finding)
        found = list(findings if is_whole else itertools.islice(findings, 1))
    if is_whole:
        seen(servers_with_one_cause=1, their_findings=len(found))
    else:
        seen(broken_servers=1, noticed=len(found))
    assert [result.name for result in found] == [expected], [str(result) for result in found]
    assert found[0].expected
    assert found[0].sent or found[0].received


def test_specs_that_make_no_sense_are_one_finding() -> None:
    _, session_class = BROKEN["has two variable dimensions"]
    names = ("at_most_one_dimension_is_variable", "each_action_can_be_sent_alone")
    checks = [check for check in CHECKS if check.name in names]
    with playground.serve(session_class) as address:
        found, skipped = run(address, breakage.OPTIONS, checks)
    assert (found.outcome, skipped.outcome) == (Outcome.FAILED, Outcome.SKIPPED)
    assert "more than one variable dimension" in skipped.reason
