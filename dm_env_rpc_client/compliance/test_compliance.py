"""The checks as tests, for `pytest --pyargs dm_env_rpc_client.compliance`."""

from __future__ import annotations

import pytest

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.compliance.outcome import Outcome
from dm_env_rpc_client.compliance.runner import run_check
from dm_env_rpc_client.compliance.table import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_compliance(
    check: Check, dm_env_rpc_address: str, dm_env_rpc_compliance_options: Options
) -> None:
    """Fails with the request, the answer and the expected answer."""
    result = run_check(check, dm_env_rpc_address, dm_env_rpc_compliance_options)
    if result.outcome is Outcome.SKIPPED:
        pytest.skip(result.reason)
    if result.outcome is Outcome.FAILED:
        pytest.fail(str(result), pytrace=False)
