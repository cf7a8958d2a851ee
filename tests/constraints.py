"""The versions that the tests are run with: `python -m tests.constraints` writes them anew.

README's test command installs from constraints.txt, so that a release of another project
changes nothing until this command is run and its result is committed. `--newer` prints what
would change and writes nothing.

The versions are resolved by uv, in a virtual environment of its own, for every Python that the
package supports; markers tell them apart.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

__all__ = ["CONSTRAINTS", "ROOT", "index", "make_environment"]

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "tests" / "constraints.txt"

_PYPROJECT = ROOT / "pyproject.toml"
_HEADER = "# Written by `python -m tests.constraints`.\n"
_COMPILE = ("--extra=test", "--universal", "--strip-extras", "--no-annotate", "--no-header", "-q")


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


def _resolve() -> str:
    compile_ = ("uv", "pip", "compile", str(_PYPROJECT), f"--python-version={_lowest_python()}")
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder))
        subprocess.run([python, "-m", "pip", "install", "-q", "uv"], check=True)
        resolved = subprocess.run(
            [python, "-m", *compile_, *_COMPILE],
            env={**index(), **os.environ},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return _HEADER + resolved.stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.constraints", description=__doc__)
    parser.add_argument("--newer", action="store_true", help="print what would change")
    is_asked_only = parser.parse_args().newer
    before = CONSTRAINTS.read_text() if CONSTRAINTS.exists() else ""
    after = _resolve()
    changes = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    lines = [line for line in changes if not line.startswith(("---", "+++", "@@"))]
    print("\n".join(lines) or "constraints.txt has the newest versions")
    if not is_asked_only:
        CONSTRAINTS.write_text(after)


if __name__ == "__main__":
    main()
