"""A line for each folder of tests whose tests are done, in place of thousands of dots.

A plugin of pytest for runs in several processes, which `tests/conftest.py` registers.
"""

from __future__ import annotations

import collections
import time

import pytest


def _folder(node_id: str) -> str:
    """Returns the folder of tests, such as `tests/server`, or the file if it has none."""
    parts = node_id.partition("::")[0].split("/")
    return "/".join(parts[:2])


class Folders:
    """Counts the tests of each folder and says when the last of them is done."""

    def __init__(self, reporter: pytest.TerminalReporter):
        self._reporter = reporter
        self._begun = time.monotonic()
        self._totals = collections.Counter[str]()
        self._left = collections.Counter[str]()
        self._outcomes = collections.defaultdict[str, collections.Counter[str]](collections.Counter)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self._totals:
            self._totals.update(map(_folder, ids))
            self._left.update(self._totals)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        """Counts what passes, without a dot."""
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            return "passed", "", "PASSED"
        if report.skipped and not hasattr(report, "wasxfail"):
            return "skipped", "", "SKIPPED"
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[_folder(report.nodeid)][report.outcome] += 1

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        folder = _folder(nodeid)
        self._left[folder] -= 1
        if self._left[folder] == 0:
            counts = ", ".join(f"{n} {what}" for what, n in sorted(self._outcomes[folder].items()))
            done = self._totals.total() - self._left.total()
            seconds = time.monotonic() - self._begun
            self._reporter.write_line(
                f"{100 * done // self._totals.total():3d} % {seconds:5.0f} s  {folder}: {counts}"
            )
            self._reporter.flush()
