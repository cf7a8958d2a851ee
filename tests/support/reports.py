"""Reports of tests, on their way from a process of the run to the first one."""

from __future__ import annotations

import pytest


def make_encodable(report: pytest.TestReport) -> None:
    """Escapes surrogates in what a report shows: sent as they are, they would end the run."""
    report.sections = [(name, _encodable(text)) for name, text in report.sections]
    if report.failed and _encodable(report.longreprtext) != report.longreprtext:
        report.longrepr = _encodable(report.longreprtext)


def _encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
