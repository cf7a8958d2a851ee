"""Interpreters of this machine, and Debians in folders, in which sessions run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.constraints import PYTHONS

_OF_THE_NETWORK = (
    "etc/resolv.conf", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt", "etc/apt/apt.conf.d",
)  # fmt: skip
"""What apt and pip need to reach their mirrors."""


def interpreters() -> dict[str, str]:
    """The interpreters of `PYTHONS` on this machine, by version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in PYTHONS:
        candidates = [*map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
        on_path = shutil.which(f"python{version}")
        if on_path is not None:
            candidates.append(on_path)
        if sys.version.startswith(f"{version}."):
            candidates.insert(0, sys.executable)
        for candidate in candidates:
            asked = subprocess.run([candidate, "-V"], capture_output=True, text=True, check=False)
            if asked.stdout.startswith(f"Python {version}."):
                found[version] = candidate
                break
    return found


def make_debian(folder: Path, suite: str, python: str) -> None:
    """Makes a Debian with an interpreter in a folder, if need be, that reaches its mirrors."""
    if not (folder / "usr/bin" / python).exists():
        packages = f"--include={python}-venv,ca-certificates"
        subprocess.run(
            ["debootstrap", "--variant=minbase", packages, suite, str(folder), *_mirror()],
            stdout=subprocess.DEVNULL,
            check=True,
        )
    for name in _OF_THE_NETWORK:
        source = Path("/", name)
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, folder / name)


def _mirror() -> list[str]:
    """The mirror that this machine's own packages come from."""
    found = []
    for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("debian*")):
        if path.exists():
            found += re.findall(r"https?://\S+/debian/?(?=\s)", path.read_text())
    return found[:1]
