"""Runs README's two commands where nothing is installed: `python -m tests.sessions fresh`.

A developer's machine has compilers, variables and packages that users do not have. This makes a
Debian by debootstrap with Python's venv module and nothing else, clones the last commit into it,
and runs both commands of README's section "Set up" as they are written, with no variable set but
HOME and PATH. It tells how long each took, how much it installed, and what the tests said; skipped
tests are listed by reason.

    python -m tests.sessions fresh                          # Debian 13, as root
    python -m tests.sessions fresh --suite bookworm --user  # Debian 12, as a user
    python -m tests.sessions fresh --suite sid              # Debian unstable: the newest Python
    python -m tests.sessions fresh --python 3.10 --python 3.12   # here, with these interpreters

It takes root and `debootstrap`; with `--python` neither. The chroot has processes and devices of
this machine, and what apt and pip need to reach their mirrors. `--keep FOLDER` keeps it, and takes
it again in the next run. It is run before a release.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.constraints import ROOT
from tests.sessions.machines import interpreters, make_debian

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USER = "someone"
_SKIPPED = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.*)$", re.MULTILINE)
_COUNTED = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


def commands() -> tuple[str, str]:
    """Returns the two commands of README's section "Set up"."""
    section = (ROOT / "README.md").read_text().split("\n## Set up\n")[1].split("\n## ")[0]
    first, second = (line[4:] for line in section.splitlines() if line.startswith("    "))
    return first, second


@dataclass
class Seen:
    """What one command did.

    Attributes:
      code: its exit code.
      minutes: how long it took.
      packages: how many packages its virtual environment has.
      megabytes: how much its virtual environment takes, in 10^6 bytes.
      counts: pytest's, such as {"passed": 8000}.
      skipped: how many tests were skipped, by reason.
      failed: what pytest says of each failure.
    """

    command: str
    code: int
    minutes: float
    packages: int
    megabytes: int
    counts: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        size = f"{self.minutes:.1f} minutes, {self.packages} packages, {self.megabytes} MB"
        counts = ", ".join(f"{number} {what}" for what, number in self.counts.items())
        lines = [f"exit code {self.code}; {size}" + (f"; {counts}" if counts else "")]
        lines += [f"  failed: {each}" for each in self.failed]
        lines += [f"  skipped {number}: {why}" for why, number in sorted(self.skipped.items())]
        return "\n".join(lines)


@dataclass
class Machine:
    """Where commands run.

    Attributes:
      name: what it is, for people.
      enter: the command after which a shell's command line follows.
      project: the clone, as this process sees it.
      inside: the clone, as the commands see it.
    """

    name: str
    enter: Sequence[str]
    project: Path
    inside: str

    def run(self, command: str) -> Seen:
        """Runs a command in the clone, and shows what it prints."""
        before = set(self.project.iterdir())
        begin = time.monotonic()
        process = subprocess.Popen(
            [*self.enter, f"cd {shlex.quote(self.inside)} && {command}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            print(line, end="", flush=True)
        code = process.wait()
        minutes = (time.monotonic() - begin) / 60
        made = [path for path in set(self.project.iterdir()) - before if _is_environment(path)]
        text = "".join(printed)
        skipped: dict[str, int] = {}
        for number, why in _SKIPPED.findall(text):
            skipped[why] = skipped.get(why, 0) + int(number)
        last = text.rstrip().rpartition("\n")[2]
        return Seen(
            command=command,
            code=code,
            minutes=round(minutes, 1),
            packages=sum(len(list(path.glob("lib/*/site-packages/*.dist-info"))) for path in made),
            megabytes=sum(map(_bytes, made)) // 10**6,
            counts={what: int(number) for number, what in _COUNTED.findall(last)},
            skipped=skipped,
            failed=_FAILED.findall(text),
        )


def _is_environment(path: Path) -> bool:
    return (path / "pyvenv.cfg").exists()


def _bytes(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def _clone(folder: Path) -> None:
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(folder)], check=True)


@contextlib.contextmanager
def _debian(suite: str, folder: Path, as_user: bool) -> Iterator[Machine]:
    """A Debian in a folder, made there if need be."""
    make_debian(folder, suite, "python3")
    home = Path("home", _USER) if as_user else Path("root")
    into: list[str] = ["chroot", str(folder)]
    if as_user:
        create = ["useradd", "--create-home", _USER]
        if not (folder / home).exists():
            subprocess.run([*into, *create], check=True)
    project = folder / home / "project"
    shutil.rmtree(project, ignore_errors=True)
    _clone(project)
    if as_user:
        subprocess.run([*into, "chown", "-R", f"{_USER}:", f"/{home}"], check=True)
        into = ["chroot", f"--userspec={_USER}", str(folder)]
    # The mounts are those of a namespace that ends with the command.
    mounts = " && ".join((
        f"mount -t proc proc {folder}/proc",
        f"mount -t sysfs -o ro sysfs {folder}/sys",
        f"mount --rbind /dev {folder}/dev",
        f"mount -t tmpfs tmpfs {folder}/tmp",
        f"chmod 1777 {folder}/tmp",
    ))  # fmt: skip
    enter = ["unshare", "--mount", "--pid", "--fork", "sh", "-ec", f'{mounts} && exec "$@"', "sh"]
    inner = ["env", "-i", f"HOME=/{home}", f"PATH={_PATH}", "bash", "-c"]
    version = (folder / "etc/debian_version").read_text().strip()
    who = "a user" if as_user else "root"
    yield Machine(f"Debian {version}, {who}", [*enter, *into, *inner], project, f"/{home}/project")


@contextlib.contextmanager
def _here(version: str, interpreter: str) -> Iterator[Machine]:
    """This machine without its variables, and with one interpreter as `python3`."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        _clone(project)
        path = f"PATH={Path(interpreter).parent}:{_PATH}"
        enter = ["env", "-i", f"HOME={folder}", path, "bash", "-c"]
        yield Machine(f"Python {version}", enter, project, str(project))


@contextlib.contextmanager
def _machines(options: argparse.Namespace) -> Iterator[Iterator[Machine]]:
    """The machines that are asked for, one after the other."""
    with contextlib.ExitStack() as stack:

        def made() -> Iterator[Machine]:
            found = interpreters()
            for version in options.python:
                if version not in found:
                    sys.exit(f"there is no Python {version} on this machine")
                with _here(version, found[version]) as machine:
                    yield machine
            if options.python and not options.suite:
                return
            for suite in options.suite or ["trixie"]:
                folder = options.keep or Path(stack.enter_context(_folder()))
                with _debian(suite, folder, options.user) as machine:
                    yield machine

        yield made()


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    # Sockets in it have short names; what is mounted in it is never deleted, since the namespace
    # of the mounts has ended.
    with tempfile.TemporaryDirectory(prefix="fresh-") as folder:
        yield folder


def main(arguments: Sequence[str]) -> int:
    """Runs the commands; 1 if one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sessions fresh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--suite", action="append", default=[], help="of Debian; default: trixie")
    parser.add_argument("--user", action="store_true", help="as a user who is not root")
    parser.add_argument("--keep", type=Path, help="the folder of the chroot, which is kept")
    parser.add_argument("--python", action="append", default=[], help="such as 3.10")
    parser.add_argument("--json", type=Path, help="a file for what was seen")
    options = parser.parse_args(arguments)
    if options.keep and len(options.suite) > 1:
        parser.error("--keep takes one suite")
    seen: list[tuple[str, Seen]] = []
    with _machines(options) as machines:
        for machine in machines:
            for command in commands():
                print(f"+ {machine.name}: {command}", flush=True)
                seen.append((machine.name, machine.run(command)))
    for name, each in seen:
        print(f"{name}: {each.command}\n{each}")
    if options.json:
        listed = [{"machine": name, **asdict(each)} for name, each in seen]
        options.json.write_text(json.dumps(listed, indent=2) + os.linesep)
    return 1 if any(each.code for _, each in seen) else 0
