"""Each check as a test, for `pytest --pyargs dm_env_rpc_client.compliance`."""

from __future__ import annotations

import warnings

import pytest

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import ComplianceWarning, Outcome
from dm_env_rpc_client.compliance.runner import Suite
from dm_env_rpc_client.compliance.table import CHECKS

Suites = dict[str, Suite]


@pytest.fixture(scope="module")
def suites() -> Suites:
    """What was found out, by address: `dm_env_rpc_address` may be another one in each test."""
    return {}


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_compliance(
    check: Check,
    dm_env_rpc_address: str,
    dm_env_rpc_compliance_options: Options,
    suites: Suites,
) -> None:
    """Fails or warns with the request, the answer and the expected answer."""
    if dm_env_rpc_address not in suites:
        suites[dm_env_rpc_address] = Suite(dm_env_rpc_address, dm_env_rpc_compliance_options)
    results = list(suites[dm_env_rpc_address].results(check))
    for result in results:
        if result.outcome is Outcome.WARNED:
            warnings.warn(str(result), ComplianceWarning, stacklevel=1)
    failures = [str(result) for result in results if result.outcome is Outcome.FAILED]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    if results and results[-1].outcome is Outcome.SKIPPED:
        pytest.skip(results[-1].reason)
