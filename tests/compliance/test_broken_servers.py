"""The suite notices what is broken: one rule in each of the servers."""

from __future__ import annotations

import dataclasses

import pytest

from dm_env_rpc_client.compliance import CHECKS, Outcome, run, trial
from tests.compliance import breakage, playground
from tests.compliance.broken_servers import BROKEN
from tests.reliability.recording import Seen
from tests.support.stopwatch import patience

OPTIONS = dataclasses.replace(breakage.OPTIONS, timeout=1.0)


def test_there_are_forty_or_more() -> None:
    assert len(BROKEN) >= 40
    assert {check for check, _ in BROKEN.values()} <= {check.name for check in CHECKS}


@pytest.mark.row(30)
@pytest.mark.parametrize("wrong", BROKEN)
def test_it_is_noticed(wrong: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, session_class = BROKEN[wrong]
    # Worlds that are left are of no account: nobody else uses this server.
    monkeypatch.setattr(trial, "_ANSWER_SECONDS", 0.2)
    # The one that is there for it first, which saves the time for the others.
    checks = sorted(CHECKS, key=lambda check: check.name != expected)
    # Some do not answer, which takes the time; on a busy machine the others are slow to answer.
    options = dataclasses.replace(OPTIONS, timeout=patience(OPTIONS.timeout))
    with playground.serve(session_class) as address:
        result = next((each for each in run(address, options, checks) if each.is_finding), None)
    seen(broken_servers=1, noticed=int(result is not None))
    assert result is not None
    assert (result.name, bool(result.expected)) == (expected, True)
    assert result.sent or result.received


def test_specs_that_make_no_sense_are_one_finding() -> None:
    _, session_class = BROKEN["has two variable dimensions"]
    names = ("at_most_one_dimension_is_variable", "each_action_can_be_sent_alone")
    checks = [check for check in CHECKS if check.name in names]
    with playground.serve(session_class) as address:
        found, skipped = run(address, breakage.OPTIONS, checks)
    assert (found.outcome, skipped.outcome) == (Outcome.FAILED, Outcome.SKIPPED)
    assert "more than one variable dimension" in skipped.reason
