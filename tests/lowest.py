"""Tries the lowest dependencies that pyproject.toml allows: `python -m tests.lowest`.

They are installed into a virtual environment of their own, without the extras, and the tests of
values, of the protocol, of connections and of the server run there. Tests that compare with
dm-env-rpc are left out, for that package needs a newer protobuf.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.constraints import CONSTRAINTS, ROOT, make_environment

NEWEST_PYTHON = (3, 11)
"""The newest Python for which all of the lowest versions have wheels."""

_TOOLS = ("hypothesis", "pytest", "pytest-timeout")
_FLOATING = ("h2",)  # Its releases are bound to those of hpack.
_TESTED = (
    "tests/tensors",
    "tests/protocol",
    "tests/client/test_connection.py",
    "tests/reliability/test_answers.py",
    "tests/reliability/test_states.py",
    "tests/environment/test_dm_env_adaptor.py",
    "tests/server/test_server.py",
)
_OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not slow and not soak")


def lowest() -> dict[str, str]:
    """The lowest version of each dependency, by name."""
    pyproject = (ROOT / "pyproject.toml").read_text()
    section = pyproject.split("\ndependencies = [\n")[1].split("\n]\n")[0]
    return dict(re.findall(r'^ *"([\w-]+)>=([\w.]+)', section, re.MULTILINE))


def _tools() -> list[str]:
    """What the tests themselves need, in the versions of constraints.txt, with markers."""
    lines = CONSTRAINTS.read_text().splitlines()
    return [line for line in lines if line.split("==")[0] in _TOOLS]


def _compares_with_the_reference(path: Path) -> bool:
    return "dm_env_rpc.v1" in path.read_text()


def main() -> int:
    if sys.version_info[:2] > NEWEST_PYTHON:
        print(f"the lowest versions have no wheels for Python {sys.version.split()[0]}")
        return 0
    pins = [f"{name}=={version}" for name, version in lowest().items()]
    print(" ".join(pins), flush=True)
    left_out = [
        f"--ignore={path}"
        for path in (ROOT / "tests").rglob("test_*.py")
        if _compares_with_the_reference(path)
    ]
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder))
        install = (python, "-m", "pip", "install", "-q", "--only-binary=:all:")
        subprocess.run([*install, *pins, *_tools(), *_FLOATING], check=True)
        subprocess.run([*install, "--no-deps", "-e", "."], cwd=ROOT, check=True)
        subprocess.run([python, "-m", "pip", "check"], check=True)
        tested = subprocess.run(
            [python, "-m", "pytest", *_OPTIONS, *_TESTED, *left_out], cwd=ROOT, check=False
        )
    return tested.returncode


if __name__ == "__main__":
    sys.exit(main())
