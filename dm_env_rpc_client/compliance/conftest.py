"""Pytest's reports on the tests of this folder at the end of a run."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Leave "Failed: " out of the line for a finding, which pytest cuts off at the right."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = crash.message.removeprefix("Failed: ")
    return report
