"""Tests for `pytest --pyargs dm_env_rpc_client.compliance`, one for each check.

Test names are short and messages begin with the server's answer, because pytest truncates the
summary line of a failed test at the width of the terminal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.options import FINDING, Options
from dm_env_rpc_client.compliance.outcome import ComplianceWarning, Outcome
from dm_env_rpc_client.compliance.runner import CHECKS, Suite

Suites = dict[str, Suite]


@pytest.fixture(scope="module")
def suites() -> Suites:
    """Return the suites by address, because `dm_env_rpc_address` can differ between tests."""
    return {}


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test(
    check: Check,
    dm_env_rpc_address: str,
    dm_env_rpc_compliance_options: Options,
    suites: Suites,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    """Run a check; failures and warnings show the request, the answer and the expected answer."""
    if dm_env_rpc_address not in suites:
        suites[dm_env_rpc_address] = Suite(dm_env_rpc_address, dm_env_rpc_compliance_options)
    # A prerequisite's finding fails the prerequisite's own test if that is selected.
    selected = {item.name for item in request.session.items}
    asked_later = {each.name for each in CHECKS if f"test[{each.name}]" in selected}
    results = list(suites[dm_env_rpc_address].results(check, asked_later))
    failures = []
    for result in results:
        text = result.as_report("" if result.name == check.name else f"{result.name}: ")
        if result.is_finding:
            record_property(FINDING, f"{result.outcome.value} {result.name}: {result.summary}")
        if result.outcome is Outcome.WARNED:
            warnings.warn(text, ComplianceWarning, stacklevel=1)
        elif result.outcome is Outcome.FAILED:
            failures.append(text)
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    if results and results[-1].outcome is Outcome.SKIPPED:
        pytest.skip(results[-1].reason)
