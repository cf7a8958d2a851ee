"""Runs tests in copies of a checkout, so that the checkout itself is never changed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutants.changes import Mutant
from tests.mutants.concern import PACKAGE

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", ".hypothesis", "*_cache", "build", "dist", "*.egg-info"
)

_LIMIT_SECONDS = 3600.0
"""A run of a group may take that long; what a single test may take is the project's setting."""


_ENDED = "pytest, with code"


class Found(NamedTuple):
    """What a run of tests showed."""

    noticed_by: str
    """The first test that failed, or why the run ended otherwise; empty if all passed."""

    seconds: float


class Copy:
    """A copy of a checkout, in which tests run.

    Args:
      folder: where it is.
      keyword: which tests may run, as pytest's `-k`; empty for all.
    """

    def __init__(self, folder: Path, keyword: str = ""):
        self.folder = folder
        self._keyword = keyword
        self._passing: set[str] = set()
        self._failing: set[str] = set()

    def check(self) -> None:
        """Makes sure that tests would import the package from here.

        Raises:
          RuntimeError: they import another one.
        """
        program = f"import {PACKAGE}; print({PACKAGE}.__file__)"
        command = [sys.executable, "-c", program]
        printed = subprocess.run(
            command,
            cwd=self.folder,
            env=self._variables(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        if not Path(printed).is_relative_to(self.folder):
            raise RuntimeError(f"tests of {self.folder} import {printed}")

    def notice(self, mutant: Mutant, groups: Sequence[Sequence[str]]) -> Found:
        """Runs groups of tests with a mutant in place, until one fails that passes without it.

        Args:
          mutant: the change.
          groups: files and folders of tests.

        Raises:
          RuntimeError: without the change, the tests cannot be run, or never end.
        """
        seconds = 0.0
        for group in filter(None, groups):
            while True:
                found = self._run_with(mutant, group)
                seconds += found.seconds
                if not found.noticed_by:
                    break
                if self._passes(found.noticed_by, group):
                    return Found(found.noticed_by, seconds)
        return Found("", seconds)

    @property
    def failing(self) -> list[str]:
        """The tests that fail without any change, which are left out."""
        return sorted(self._failing)

    def _run_with(self, mutant: Mutant, group: Sequence[str]) -> Found:
        path = self.folder / mutant.path
        original = path.read_text()
        path.write_text(mutant.applied(original))
        try:
            return self._run(group)
        finally:
            path.write_text(original)

    def _passes(self, name: str, group: Sequence[str]) -> bool:
        """Whether a test passes without a change; if not, it is left out from now on.

        Only a test that has failed is run again, since a run of all of them takes minutes.

        Args:
          name: of the test, or why the run of its group ended otherwise.
          group: which is run again if no test is known by this name.

        Raises:
          RuntimeError: without a change, it ends without saying which test fails.
        """
        is_test = "::" in name and not name.startswith(_ENDED)
        key = name if is_test else "\n".join(group)
        if key not in self._passing:
            found = self._run([name] if is_test else group)
            if is_test and found.noticed_by.startswith(_ENDED):
                # Its parameters have a name that pytest's summary does not show whole.
                found = self._run([name.partition("[")[0]])
            if found.noticed_by:
                if "::" not in found.noticed_by or found.noticed_by.startswith(_ENDED):
                    raise RuntimeError(f"without a change, {key} ends so: {found.noticed_by}")
                self._failing.add(found.noticed_by)
                return False
            self._passing.add(key)
        return True

    def _run(self, tests: Sequence[str]) -> Found:
        options = ("-x", "-q", "-n0", "-pno:cacheprovider", "-pno:randomly", "--tb=no")
        left_out = [f"--deselect={name}" for name in self._failing]
        left_out += ["-k", self._keyword] if self._keyword else []
        begin = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *left_out, *tests],
            cwd=self.folder,
            env=self._variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=_LIMIT_SECONDS)
                noticed = _noticed_by(process.returncode, output)
            except subprocess.TimeoutExpired:
                noticed = "the time limit"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return Found(noticed, time.monotonic() - begin)

    def _variables(self) -> dict[str, str]:
        # Bytecode could be taken for that of another mutant, of the same size and second.
        return {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_ADDOPTS": "",
        }


def _noticed_by(code: int, output: str) -> str:
    """Returns the first test that failed, or how pytest ended."""
    if code in (0, 5):  # 5: no test is left.
        return ""
    failed = re.search(
        r"^(?:FAILED|ERROR) (.*?)(?: \(\w+\))?(?: - .*|: .*)?$", output, re.MULTILINE
    )
    return failed[1] if failed else f"{_ENDED} {code}: {output.strip()[-200:]}"


@contextlib.contextmanager
def copied(root: Path, keyword: str = "") -> Iterator[Copy]:
    """Copies a checkout to a folder that is removed at the end; see `Copy`."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        place = Path(folder, "checkout")
        shutil.copytree(root, place, ignore=_LEFT_OUT, symlinks=True)
        copy = Copy(place.resolve(), keyword)
        copy.check()
        yield copy
