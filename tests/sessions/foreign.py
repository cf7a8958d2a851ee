"""Runs the tests that need other projects' packages: `python -m tests.sessions foreign`.

README's second command installs what the package itself needs to be tested. Everything that it is
compared with, and the rooms that need large packages, are tested here: in a virtual environment
with the extra `test-foreign`, which is kept between runs and made anew when its versions change.
Arguments are pytest's; without a path, the files that call `pytest.importorskip` are run, and a
package that cannot be imported is a failure.

    python -m tests.sessions foreign
    python -m tests.sessions foreign tests/adaptors/test_sb3.py -k ppo
    python -m tests.sessions foreign --beside report.xml   # what did not pass in README's command
    python -m tests.sessions foreign --list        # the files
    python -m tests.sessions foreign --install     # the environment alone
    python -m tests.sessions foreign --run mypy    # a module in it
    python -m tests.sessions foreign --simulators  # simulators that step tensors: 2 GB

Simulators have an environment of their own, with the extra `test-simulators`: their versions of the
other packages would hold those back. After `--simulators`, the other arguments are the same.

The environment is in `dm-env-rpc-client/` of the user's cache folder. PyTorch is installed in the
build that pip finds first; set PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL for one without CUDA.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.constraints import FOREIGN, ROOT, SIMULATORS, make_environment

# As many as for the whole suite, where pytest is given no files.
_PROCESSES = (os.cpu_count() or 1) + 2


class Kind(NamedTuple):
    """An environment, and which tests are run in it.

    Attributes:
      name: of the environment.
      extra: what is installed in it.
      constraints: the versions.
      marks: which tests of the files.
    """

    name: str
    extra: str
    constraints: Path
    marks: str = "not soak and not slow"

    def has(self, path: Path) -> bool:
        """Whether a file of tests is for this environment, if it needs a package of an extra."""
        # Tests of lookalikes, such as test_simulators.py, run in both.
        own = path.parent.name == "simulators"
        return "simulators" in path.as_posix() if self is _SIMULATORS else not own


_FOREIGN = Kind("foreign", "test-foreign", FOREIGN)
_SIMULATORS = Kind("simulators", "test-simulators", SIMULATORS, "not soak")


def files(kind: Kind = _FOREIGN) -> list[str]:
    """Returns the files of tests that need a package of the extra, relative to the project."""
    found = (path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted(
        path.as_posix()
        for path in found
        if kind.has(path) and "importorskip(" in (ROOT / path).read_text()
    )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dm-env-rpc-client")


def _name(kind: Kind) -> str:
    """Returns the name of the environment, which changes with what is installed in it."""
    parts = (sys.version, sys.prefix, kind.constraints.read_text())
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{kind.name}-{sys.version_info[0]}.{sys.version_info[1]}-{digest[:16]}"


@contextlib.contextmanager
def _environment(kind: Kind) -> Iterator[Path]:
    """The Python of the environment, in which this checkout is installed; one run at a time."""
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = cache / _name(kind)
        python = folder / "bin" / "python"
        complete = folder / "complete"
        install = (str(python), "-m", "pip", "install", "-q")
        if not complete.exists():
            for former in cache.glob(f"{folder.name.rpartition('-')[0]}-*"):
                shutil.rmtree(former)
            make_environment(folder)
            # What is imported is compiled then; that of all packages takes a minute.
            packages = ("--no-compile", "-e", f".[{kind.extra}]", "-c", str(kind.constraints))
            subprocess.run([*install, *packages], cwd=ROOT, check=True)
            complete.touch()
        subprocess.run([*install, "--no-deps", "-e", "."], cwd=ROOT, check=True)
        yield python


def main(arguments: Sequence[str]) -> int:
    """Runs the tests, and returns pytest's exit code."""
    kind = _FOREIGN
    if arguments and arguments[0] == "--simulators":
        kind, arguments = _SIMULATORS, arguments[1:]
    if list(arguments) == ["--list"]:
        print("\n".join(files(kind)))
        return 0
    with _environment(kind) as python:
        if list(arguments) == ["--install"]:
            return 0
        if arguments and arguments[0] == "--run":
            module = list(arguments[1:])
        else:
            named = [] if any(".py" in each for each in arguments) else files(kind)
            options = ("--need-packages", f"-n{_PROCESSES}", "-m", kind.marks)
            module = ["pytest", *options, *arguments, *named]
        # More threads make the small networks of the tests slower.
        variables = {"OMP_NUM_THREADS": "1", **os.environ}
        command = [str(python), "-m", *module]
        return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
