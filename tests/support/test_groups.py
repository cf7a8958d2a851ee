"""What is skipped, and what one run of the tests leaves to another."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminals import Terminal, on_a_terminal
from tests.constraints import ROOT
from tests.support import groups
from tests.support.groups import passed_in, reported_name

_TESTS = """
import pytest

class TestSome:
    @pytest.mark.parametrize("value", ["a[b]", "c::d", "e.f/g"])
    def test_passes(self, value): ...

def test_passes(): ...

def test_needs_a_package():
    pytest.importorskip("no_such_package")

def test_fails():
    raise AssertionError

@pytest.fixture
def broken():
    yield
    raise AssertionError

def test_passes_and_cannot_be_cleaned_up(broken): ...
"""


def test_what_passed_is_known_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "test_some.py").write_text(_TESTS)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    run = subprocess.run(
        [*command, f"--rootdir={tmp_path}", f"--junitxml={report}", "inner"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "1 failed, 5 passed, 1 skipped, 1 error" in run.stdout
    place = "inner/test_some.py"
    assert passed_in(report) == {
        reported_name(f"{place}::{name}")
        for name in (
            "TestSome::test_passes[a[b]]",
            "TestSome::test_passes[c::d]",
            "TestSome::test_passes[e.f/g]",
            "test_passes",
        )
    }


def test_a_second_run_leaves_out_what_passed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    path = "tests/support/test_settling.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path]
    first = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, check=False)
    second = subprocess.run([*command, f"--beside={report}"], cwd=ROOT, check=False)
    assert (first.returncode, second.returncode) == (0, 5)  # 5: none is left.


def _no_pty() -> tuple[int, int]:
    raise OSError("out of pty devices")


@pytest.mark.parametrize("group", ["pty", "terminal"])
def test_tests_on_a_terminal_are_skipped_where_none_can_be_opened(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "installed", lambda program: program)
    monkeypatch.setattr(pty, "openpty", _no_pty)
    reason = f"group {group}: no pseudo-terminal can be opened: out of pty devices"
    with pytest.raises(pytest.skip.Exception, match=reason):
        groups.need(group)
    with pytest.raises(pytest.skip.Exception, match=reason):
        on_a_terminal("--version") if group == "pty" else Terminal(tmp_path)


def test_a_pseudo_terminal_that_is_looked_for_is_closed() -> None:
    groups.need("pty")
    before = os.listdir("/proc/self/fd")
    groups.need("pty")
    assert os.listdir("/proc/self/fd") == before
