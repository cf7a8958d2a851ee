"""Tests that need more than Python, in groups: each is run whole or skipped whole.

A test that is marked with the name of a group, and one that calls `need`, is skipped if the
group's programs are not installed, or if the machine has no pseudo-terminals and the group needs
one. `report_together` gives all skips of a group one place, so that pytest's summary has one line
for each group. `.ci/run` installs the programs and fails if a group is skipped all the same.

Other projects' packages are those of the extras `test-foreign` and `test-simulators`. A file, or a
test, that uses one calls `pytest.importorskip`; `python -m tests.sessions foreign` installs the
packages and runs these files.
"""

from __future__ import annotations

import os
import pty
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NoReturn

import pytest

GROUPS = {
    "browser": ("chromium", "chromedriver"),
    "pty": (),
    "terminal": ("tmux",),
    "screen": ("Xvfb", "xdotool"),
    "compiler": ("cc", "nm"),
    "certificates": ("openssl",),
    "nginx": ("nginx",),
    "haproxy": ("haproxy",),
}
"""The programs of each group. The peers in other languages know theirs themselves."""

_ON_A_TERMINAL = ("pty", "terminal")
"""The groups whose tests open a pseudo-terminal. A container without /dev/pts has none."""

_PREFIX = "group "
_NOT_IMPORTED = "could not import "


def skip(group: str, reason: str) -> NoReturn:
    """Skips the test that runs, as one of a group."""
    pytest.skip(f"{_PREFIX}{group}: {reason}")


def installed(program: str) -> str | None:
    """Returns where a program is; servers are often in folders that only root searches."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


def need(group: str) -> None:
    """Skips the test that runs unless this machine has what its group needs."""
    missing = [program for program in GROUPS[group] if installed(program) is None]
    if missing:
        skip(group, f"not installed: {', '.join(missing)}")
    if group in _ON_A_TERMINAL:
        try:
            opened = pty.openpty()
        except OSError as error:
            skip(group, f"no pseudo-terminal can be opened: {error}")
        for each in opened:
            os.close(each)


def needs_packages(path: Path) -> bool:
    """Whether a file of tests uses packages of other projects."""
    return "importorskip(" in path.read_text()


def passed_in(report: Path) -> set[tuple[str, str]]:
    """Returns the tests that passed in a run, as `reported_name` names them.

    Args:
      report: a file that pytest's option `--junitxml` wrote.
    """
    return {
        (case.get("classname", ""), case.get("name", ""))
        for case in ElementTree.parse(report).iter("testcase")
        if not {part.tag for part in case} & {"failure", "error", "skipped"}
    }


def reported_name(node_id: str) -> tuple[str, str]:
    """Returns how a report names the place of a test, and the test itself."""
    names, bracket, parameters = node_id.partition("[")
    path, *inner = names.split("::")
    place = [path.removesuffix(".py").replace("/", "."), *inner[:-1]]
    return ".".join(place), f"{inner[-1]}{bracket}{parameters}"


def report_together(
    report: pytest.TestReport | pytest.CollectReport, path: Path, are_needed: bool
) -> None:
    """Gives the skips of a group, or for want of a package, one place; pytest would name each.

    Args:
      report: of a test, or of a file that could not be imported.
      path: the file of tests.
      are_needed: whether a package that is not installed is a failure.
    """
    if not (report.skipped and isinstance(report.longrepr, tuple)):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if reason.startswith(_NOT_IMPORTED):
        if are_needed:
            report.outcome, report.longrepr = "failed", reason
            return
        if not needs_packages(path):
            report.outcome = "failed"
            report.longrepr = (
                f"{path} has to call importorskip itself; `tests.sessions foreign` looks for it"
            )
            return
        package = reason.removeprefix(_NOT_IMPORTED).partition(":")[0]
        kind = "simulators" if path.parent.name == "simulators" else "foreign"
        reason = f"{package} is not installed; it is of the extra test-{kind}"
        report.longrepr = (__file__, 1, reason)
    elif reason.startswith(_PREFIX):
        report.longrepr = (__file__, 1, reason)
