"""Tries the package on each Python that it supports: `python -m tests.sessions pythons`.

For each interpreter, and once with the newest and once with the lowest dependencies that
pyproject.toml allows, a wheel is built from this folder and installed into a virtual environment of
its own; then the tests of values, of the protocol, of connections, environments and the server run
there, in a folder without the package. With the newest dependencies README's first command and its
snippets run, too.

    python -m tests.sessions pythons                             # all interpreters found, both
    python -m tests.sessions pythons 3.10 --dependencies lowest
    python -m tests.sessions pythons --debian /tmp/sid 3.14   # in Debian unstable, made there

Interpreters are found on PATH and among those of pyenv. Debian unstable takes root and
`debootstrap`. The versions are resolved by uv: for a Python that is newer than a dependency's
lowest release, the lowest that has a wheel for it.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.constraints import ROOT, index, make_environment
from tests.sessions.machines import interpreters, make_debian

_TOOLS = ("h2", "hypothesis>=6.100", "pytest>=8", "pytest-timeout>=2.3")
_TESTED = (
    "tests/tensors",
    "tests/protocol",
    "tests/client/test_connection.py",
    "tests/reliability/hostile/test_answers.py",
    "tests/environment/test_dm_env_adaptor.py",
    "tests/environment/test_adaptor_of_scripts.py",
    "tests/server/test_server.py",
)
_OPTIONS = (
    "-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not slow and not soak",
    # Protobuf 4.25 on Python 3.12 and later.
    "-W", "ignore:Type google:DeprecationWarning",
    # Pictures need Pillow, of an extra.
    "--ignore=tests/tensors/displays",
)  # fmt: skip
_COPIED = ("tests", "docs", "notebooks", "protos", "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
           "pyproject.toml")  # fmt: skip
_CHROOT_FOLDER = "project"


def lowest() -> dict[str, str]:
    """The lowest version of each dependency, by name; what is for some Pythons only left out."""
    pyproject = (ROOT / "pyproject.toml").read_text()
    section = pyproject.split("\ndependencies = [\n")[1].split("\n]\n")[0]
    return dict(re.findall(r'^ *"([\w-]+)>=([\w.]+)[^;\n]*$', section, re.MULTILINE))


def _compares_with_the_reference(path: Path) -> bool:
    """Whether a test needs dm-env-rpc, which needs a newer protobuf than the lowest."""
    return "dm_env_rpc.v1" in path.read_text()


def _try_this(dependencies: str) -> int:
    """Tries this interpreter; returns the exit code of the tests."""
    extras = "" if dependencies == "lowest" else "[cli,gymnasium]"
    resolution = "lowest-direct" if dependencies == "lowest" else "highest"
    with tempfile.TemporaryDirectory() as folder:
        python = make_environment(Path(folder, "environment"))
        subprocess.run([python, "-m", "pip", "install", "-q", "uv"], check=True)
        environment = {**index(), **os.environ}
        uv = (python, "-m", "uv", "pip")
        install = (*uv, "install", "-q", f"--python={python}", "--only-binary=:all:",
                   "--no-binary=dm-env-rpc-client")  # fmt: skip
        begin = time.monotonic()
        subprocess.run(
            [*install, f"--resolution={resolution}", f"{ROOT}{extras}"], env=environment, check=True
        )
        seconds = time.monotonic() - begin
        freeze = (*uv, "freeze", "-q", f"--python={python}", "--exclude=dm-env-rpc-client")
        listed = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout
        chosen = Path(folder, "chosen.txt")
        chosen.write_text(listed)
        subprocess.run([*install, f"--constraints={chosen}", *_TOOLS], env=environment, check=True)
        versions = [line for line in listed.splitlines() if line.split("==")[0] in lowest()]
        print(f"{platform.python_version()}, {dependencies}: installed in {seconds:.0f} s:",
              *versions, flush=True)  # fmt: skip
        project = Path(folder, "project")
        _copy(ROOT, project)
        left_out = [
            f"--ignore={path}"
            for path in (project / "tests").rglob("test_*.py")
            if _compares_with_the_reference(path)
        ]
        commands: list[Sequence[str | Path]] = [
            [python, "-m", "pytest", *_OPTIONS, *_TESTED, *left_out],
        ]
        if dependencies == "newest":
            commands += [
                [python.with_name("dm-env-rpc"), "run", "--episodes", "20"],
                [python, _snippets(project)],
            ]
        for command in commands:
            code = subprocess.run(command, cwd=project, check=False).returncode
            if code:
                return code
    return 0


def _snippets(project: Path) -> Path:
    """Returns a program of README's snippets."""
    program = project / "snippets.py"
    readme = (project / "README.md").read_text()
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)))
    return program


def _copy(source: Path, target: Path, names: Iterable[str] = _COPIED) -> None:
    for name in names:
        path = source / name
        if path.is_dir():
            shutil.copytree(path, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / name)


def _debian(folder: Path, version: str) -> list[str]:
    """Returns a command for the Python of Debian unstable, which is installed in a folder."""
    make_debian(folder, "sid", f"python{version}")
    shutil.rmtree(folder / _CHROOT_FOLDER, ignore_errors=True)
    _copy(ROOT, folder / _CHROOT_FOLDER, (*_COPIED, "dm_env_rpc_client", "LICENSE"))
    command = f'cd /{_CHROOT_FOLDER} && exec python{version} "$@"'
    return ["chroot", str(folder), "sh", "-c", command, "sh"]


def main(arguments: Sequence[str]) -> int:
    """Tries what is asked for; 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sessions pythons", description=__doc__)
    parser.add_argument("versions", nargs="*", help="such as 3.10; default: all that are found")
    parser.add_argument("--dependencies", choices=("lowest", "newest"), action="append")
    parser.add_argument("--debian", type=Path, help="a folder with Debian unstable")
    parser.add_argument("--this", action="store_true", help="this interpreter alone")
    options = parser.parse_args(arguments)
    asked = options.dependencies or ["newest", "lowest"]
    if options.this:
        return max(_try_this(dependencies) for dependencies in asked)
    commands: dict[str, list[str]]
    if options.debian:
        commands = {version: _debian(options.debian, version) for version in options.versions}
    else:
        found = interpreters()
        commands = {
            version: [found[version]] for version in options.versions or found if version in found
        }
    failed = [version for version in options.versions if version not in commands]
    for version in failed:
        print(f"there is no Python {version} here")
    for version, command in commands.items():
        for dependencies in asked:
            this = ["-m", "tests.sessions", "pythons", "--this", "--dependencies", dependencies]
            if subprocess.run([*command, *this], cwd=ROOT, check=False).returncode:
                failed.append(f"{version} with the {dependencies} dependencies")
    print("failed: " + ", ".join(failed) if failed else "all passed")
    return 1 if failed else 0
