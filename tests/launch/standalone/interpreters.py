"""The interpreters that the one-file server runs on, each with a NumPy of its time."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dm_env_rpc_client.launch import standalone
from tests.reliability.hostile.served import Served
from tests.support.groups import skip

FILE = Path(standalone.__file__).with_name("dm_env_rpc_server.py")
HERE = Path(__file__).parent

VERSIONS = {
    "3.6": "numpy==1.13.3", "3.7": "numpy", "3.8": "numpy", "3.9": "numpy", "3.10": "numpy",
    "3.11": "numpy", "3.12": "numpy", "3.13": "numpy", "3.14": "numpy",
}  # fmt: skip
"""What is installed for each interpreter: for the oldest, the oldest that has a wheel for it."""

OLDEST, NEWEST = "3.6", "3.13"


@functools.cache
def _found(version: str) -> str | None:
    """An interpreter of pyenv's, or of the path."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for folder in sorted((root / "versions").glob(f"{version}.*")):
        if (folder / "bin/python").exists():
            return str(folder / "bin/python")
    return shutil.which(f"python{version}")


@functools.cache
def interpreter(version: str, *more: str) -> str:
    """Returns an interpreter with NumPy, in a virtual environment that is kept between runs.

    Args:
      version: such as "3.6".
      *more: requirements beside NumPy, all of them.
    """
    python = _found(version)
    if python is None:
        skip("old interpreters", f"no Python {version}: neither in pyenv nor on the path")
    wanted = (VERSIONS[version], *more)
    name = "-".join([version, *wanted]).replace("=", "").replace("[", "").replace("]", "")
    folder = Path(tempfile.gettempdir()) / f"dm-env-rpc-tests-{os.getuid()}" / name
    result = folder / "bin/python"
    if not (folder / "complete").exists():
        # Beside the place, so that two runs at once do not use half of one.
        scratch = Path(f"{folder}.{os.getpid()}")
        shutil.rmtree(scratch, ignore_errors=True)
        subprocess.run([python, "-m", "venv", scratch], check=True, capture_output=True)
        install = [str(scratch / "bin/python"), "-m", "pip", "install", "-q"]
        steps = [[VERSIONS[version]]]
        if more:
            steps.append(["--no-deps", *more])
        try:
            for words in steps:
                subprocess.run([*install, *words], capture_output=True, text=True, check=True)
        except subprocess.CalledProcessError as error:
            skip("old interpreters", f"{wanted} for Python {version}: {error.stderr[-300:]}")
        (scratch / "complete").touch()
        with contextlib.suppress(OSError):
            scratch.rename(folder)
        shutil.rmtree(scratch, ignore_errors=True)
    return str(result)


@contextlib.contextmanager
def served(
    python: str, environment: str, *options: str, address: str = "localhost:0", ends: bool = True
) -> Iterator[Served]:
    """Serves an environment of `hosted.py` with the one file.

    Args:
      python: the interpreter.
      environment: NAME, or MODULE:NAME.
      *options: of the command line.
      address: where it listens.
      ends: whether it has to be there at the end.
    """
    reference = environment if ":" in environment else f"hosted:{environment}"
    process = subprocess.Popen(
        [python, str(FILE), reference, "--address", address, *options],
        stdout=subprocess.PIPE, text=True, cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(FILE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"{python} ended with {process.wait(10)}"
        yield Served(line.strip().rpartition(" ")[2], process.pid)
        assert not ends or process.poll() is None, "the server ended"
    finally:
        process.terminate()
        process.stdout.close()
        try:
            code = process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail("the server did not stop in 10 s")
    assert code == 0
