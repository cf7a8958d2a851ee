"""A report with surrogates does not end the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONFTEST = """
import pytest
from tests.support.reports import make_encodable

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    make_encodable(report)
    return report
"""

TESTS = r"""
import logging

def test_that_fails():
    logging.getLogger("it").warning("logged \ud800")
    assert "compared \ud800" == ""

def test_that_passes():
    logging.getLogger("it").warning("logged \ud800")
"""


def test_a_report_with_surrogates_reaches_the_first_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ("-n", "1", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path))
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "INTERNALERROR" not in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout
    assert r"logged \ud800" in ended.stdout
