"""Builds and checks the archives of a release: `python -m tests.sessions release`.

The source distribution and the wheel are built in environments of their own. Then: `twine check
--strict`; the wheel holds the package and nothing else, with its licence and `py.typed`; a wheel
that is built from the source distribution has the same files; the core tests that lie in the source
distribution pass with it. What is printed: sizes, the time of an install and of an import, and what
is missing before a release, such as a tag. `--strict` makes that an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.constraints import ROOT, make_environment

_TOOLS = ("build", "check-wheel-contents", "twine")
_IMPORTS = 7


def missing(tag: str | None) -> list[str]:
    """Returns what has to be done before this checkout can be released.

    Args:
      tag: the tag that the release is made of; None to look for one at HEAD.
    """
    pyproject = (ROOT / "pyproject.toml").read_text()
    version = _version()
    found = []
    if 'repository = ""' in pyproject:
        found.append(
            "pyproject.toml: `repository` of the metadata hook is empty, so README has no links"
        )
    if "\nPUBLISHED = True\n" not in (ROOT / "dm_env_rpc_client" / "version.py").read_text():
        found.append(
            "version.py: PUBLISHED is not True, so errors, guides and projects install from a clone"
        )
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest is None or not re.fullmatch(rf"{re.escape(version)}, \d{{4}}-\d\d-\d\d", newest[1]):
        title = newest[1] if newest else "nothing"
        found.append(f"CHANGELOG.md: begins with {title!r}; expected '{version}, YYYY-MM-DD'")
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is None or cited[1] != version:
        found.append(f"CITATION.cff: its version is not {version}")
    if _git("status", "--porcelain"):
        found.append("git: there are changes that are not committed")
    tags = [tag] if tag else _git("tag", "--points-at", "HEAD").split()
    if f"v{version}" not in tags:
        found.append(f"git: expected the tag v{version}, got {', '.join(tags) or 'none'}")
    return found


def unexpected(wheel: Path) -> list[str]:
    """Returns what a wheel must not hold, or lacks."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    folder = metadata.partition("/")[0]
    found = [
        f"{name} does not belong into a wheel"
        for name in sorted(names)
        if not name.startswith(("dm_env_rpc_client/", f"{folder}/"))
    ]
    needed = {"dm_env_rpc_client/py.typed", f"{folder}/licenses/LICENSE"}
    found += [f"{name} is missing" for name in sorted(needed - names)]
    relative = re.findall(r"\]\((?![a-z]+:|#)[^)\s]+\)", text.partition("\n\n")[2])
    found += [f"the description has the relative link {link}" for link in relative]
    return found


def _version() -> str:
    text = (ROOT / "dm_env_rpc_client" / "version.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert version is not None
    return version[1]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _run(*command: str | Path, cwd: Path = ROOT) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, cwd=cwd, check=True)


def _build(python: Path, output: Path) -> tuple[Path, Path]:
    """Returns the source distribution and the wheel that was built from it."""
    _run(python, "-m", "build", "--outdir", output, ROOT)
    (source,), (wheel,) = output.glob("*.tar.gz"), output.glob("*.whl")
    _run(python, "-m", "twine", "check", "--strict", source, wheel)
    # W002: two files are the same; some `__init__` files are.
    _run(python, "-m", "check_wheel_contents", "--ignore=W002", wheel)
    return source, wheel


def _measure(wheel: Path, folder: Path) -> None:
    """Prints how long an install and an import take, and how large both are."""
    python = make_environment(folder)
    begin = time.monotonic()
    _run(python, "-m", "pip", "install", "-q", wheel)
    seconds = time.monotonic() - begin
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    own = sum(
        path.stat().st_size for path in folder.rglob("dm_env_rpc_client/**/*") if path.is_file()
    )
    print(f"install: {seconds:.1f} s, {own / 1e6:.1f} MB of {size / 1e6:.0f} with dependencies")
    for what in ("dm_env_rpc_client", "dm_env_rpc_client; dm_env_rpc_client.make", "numpy"):
        times = []
        for _ in range(_IMPORTS):
            begin = time.perf_counter()
            subprocess.run([python, "-c", f"import {what}"], check=True)
            times.append(time.perf_counter() - begin)
        print(f"import {what}: {statistics.median(times):.2f} s with the start of Python")


def _test(source: Path, folder: Path) -> None:
    """Runs the core tests of a source distribution against what it installs."""
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    (project,) = folder.iterdir()
    # As a clone would: this installs the project that it lies in.
    arguments = ("-m", "tests.sessions", "pythons", "--this", "--dependencies", "newest")
    _run(sys.executable, *arguments, cwd=project)


def main(arguments: Sequence[str]) -> int:
    """Builds and checks; 1 if something is wrong, or with `--strict` missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.sessions release", description=__doc__)
    parser.add_argument("--strict", action="store_true", help="what is missing is an error")
    parser.add_argument("--tag", help="the tag that is released")
    parser.add_argument("--output", type=Path, help="a folder for what was built")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = make_environment(folder / "tools")
        _run(python, "-m", "pip", "install", "-q", *_TOOLS)
        source, wheel = _build(python, folder / "dist")
        wrong = unexpected(wheel)
        for path in (source, wheel):
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} KB")
        _measure(wheel, folder / "installed")
        _test(source, folder / "source")
        if options.output is not None:
            options.output.mkdir(parents=True, exist_ok=True)
            for path in (source, wheel):
                shutil.copy(path, options.output)
    lacking = missing(options.tag)
    for line in wrong:
        print(f"wrong: {line}")
    for line in lacking:
        print(f"missing for a release: {line}")
    return 1 if wrong or (options.strict and lacking) else 0
