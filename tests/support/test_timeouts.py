"""Tests that hang, in a run of pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONFTEST = """
import os, time
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    if "hook" in item.name and call.when == "call":
        time.sleep(1.5)  # Its time is over in a hook.
    outcome = yield
    outcome.get_result()
    if "internal" in item.name:
        raise RuntimeError("of a plugin")
"""

HANGS = """
import threading, time
import pytest
from hypothesis import given, strategies

def hang():
    threading.Event().wait()

def test_before():
    pass

def test_body():
    hang()

@given(strategies.integers())
def test_example(value):
    hang()

@pytest.fixture
def slow_setup():
    hang()

def test_setup(slow_setup):
    pass

@pytest.fixture
def slow_teardown():
    yield
    hang()

def test_teardown(slow_teardown):
    pass

def test_hook():
    pass

def test_swallows():
    try:
        hang()
    except BaseException:
        pass
    hang()

def test_after():
    pass
"""


def run_pytest(folder: Path, program: str, *options: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "pytest",
        *(f"-p{plugin}" for plugin in ("timeout", "xdist", "tests.support.timeouts")),
        "-pno:cacheprovider",
    ]
    # Other plugins that are installed may order tests as they like.
    alone = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",  # This run's options may be of such plugins.
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "300",
    }
    return subprocess.run(
        [*command, "-c", ROOT / "pyproject.toml", "--rootdir", folder, *options, "test_it.py"],
        cwd=folder,
        env={**os.environ, **alone},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    ).stdout


def test_tests_that_hang_fail_alone(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, HANGS, "-n2", "--timeout=1")
    found = set(re.findall(r"^(?:FAILED|ERROR) test_it.py::(\w+) - (.*)", output, re.MULTILINE))
    reason = "tests.support.timeouts.OverdueError: the test took longer than 1.0 s"
    late = {"test_body", "test_example", "test_setup", "test_teardown", "test_swallows"}
    assert found == {(name, reason) for name in late}, output
    assert "3 failed, 4 passed, 2 errors" in output
    assert "INTERNALERROR" not in output
    assert re.search("thread 0x.* in hang", output, re.DOTALL)
