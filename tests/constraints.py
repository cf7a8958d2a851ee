"""The versions that the tests are run with: `python -m tests.constraints` writes them anew.

README's test command installs from constraints.txt, so that a release of another project
changes nothing until this command is run and its result is committed; constraints-foreign.txt is
for the extra `test-foreign`, some of whose projects want older versions of the others, and
constraints-simulators.txt for the extra `test-simulators`, for the same reason. `--newer`
prints what would change and writes nothing; `--wheels` checks that every Python and system that
README promises gets a wheel of each package of the extra `test`, so that none needs a compiler.

The versions are resolved by uv, in a virtual environment of its own, for every Python that the
package supports; markers tell them apart.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
"""The versions for the extra `test`."""
FOREIGN = ROOT / "tests" / "constraints-foreign.txt"
"""The versions for the extra `test-foreign`."""
SIMULATORS = ROOT / "tests" / "constraints-simulators.txt"
"""The versions for the extra `test-simulators`."""

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""The versions that the classifiers of pyproject.toml name."""

_PYPROJECT = ROOT / "pyproject.toml"
_HEADER = "# Written by `python -m tests.constraints`.\n"
_COMPILE = (
    *("uv", "pip", "compile", str(_PYPROJECT)),
    *("--strip-extras", "--no-annotate", "--no-header", "-q"),
)
_EXTRAS = {CONSTRAINTS: "test", FOREIGN: "test-foreign", SIMULATORS: "test-simulators"}
_HELD = {
    # Later releases have no build for processors alone where the gate runs; the one with CUDA takes
    # gigabytes.
    "torch": "2.13.0",
}


def make_environment(folder: Path) -> Path:
    """Makes a virtual environment and returns its Python."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def index() -> dict[str, str]:
    """The index that pip is configured with, for uv, which does not read pip's configuration."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    url = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip()
    return {"UV_DEFAULT_INDEX": url} if url else {}


def _lowest_python() -> str:
    found = re.search(r'^requires-python = ">=([\d.]+)"', _PYPROJECT.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


_SYSTEMS = ("x86_64-manylinux_2_28", "aarch64-apple-darwin")
"""Debian 12 and 13, and macOS."""


@contextlib.contextmanager
def _uv() -> Iterator[Callable[..., str]]:
    """Runs uv in an environment of its own; returns what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder, "environment"))
        subprocess.run([python, "-m", "pip", "install", "-q", "uv"], check=True)
        held = Path(folder, "held.txt")
        held.write_text("".join(f"{name}=={version}\n" for name, version in _HELD.items()))

        def run(*options: str) -> str:
            resolved = subprocess.run(
                [python, "-m", *_COMPILE, f"--constraint={held}", *options],
                env={**index(), **os.environ},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            return resolved.stdout

        yield run


def _resolve(uv: Callable[..., str]) -> dict[Path, str]:
    """Returns the newest versions, as the text of each file."""
    lowest = f"--python-version={_lowest_python()}"
    return {
        path: _HEADER + uv("--universal", lowest, f"--extra={extra}")
        for path, extra in _EXTRAS.items()
    }


def _check_wheels(uv: Callable[..., str]) -> None:
    """Fails if a version of constraints.txt has no wheel for a Python or a system."""
    for python in PYTHONS:
        for system in _SYSTEMS:
            found = uv(
                "--extra=test", "--only-binary=:all:", f"--constraint={CONSTRAINTS}",
                f"--python-version={python}", f"--python-platform={system}",
            )  # fmt: skip
            print(f"Python {python}, {system}: {len(found.splitlines())} wheels", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.constraints", description=__doc__)
    parser.add_argument("--newer", action="store_true", help="print what would change")
    parser.add_argument("--wheels", action="store_true", help="check that nothing is compiled")
    options = parser.parse_args()
    with _uv() as uv:
        if options.wheels:
            _check_wheels(uv)
            return
        resolved = _resolve(uv)
    for path, after in resolved.items():
        before = path.read_text() if path.exists() else ""
        changes = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        lines = [line for line in changes if not line.startswith(("---", "+++", "@@"))]
        print("\n".join(lines) or f"{path.name} has the newest versions")
        if not options.newer:
            path.write_text(after)


if __name__ == "__main__":
    main()
