"""Builds the peers from their sources, once for each state of them.

What is built lies outside the tree, in the user's cache, under a name with a hash of the
sources, the protos and the tools; so it is built again when one of them changes. Of the processes
that ask for the same, one builds and the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.rpc import status_pb2

from tests.support.stopwatch import patience

PEERS = Path(__file__).parent
PROTOS = PEERS.parents[1] / "protos"
GOOGLE_RPC = Path(status_pb2.__file__).parents[2]
"""Where google/rpc/status.proto is."""

BUILD_SECONDS = 600
"""Alone it takes half a minute. On a busy machine, it takes longer than a test may."""

CANNOT_INSTALL = 75
"""What a script exits with where it cannot get what it needs (EX_TEMPFAIL)."""


class MissingToolchainError(Exception):
    """What a peer is built with is not on this machine."""


def cache() -> Path:
    """The folder of what tests compile, in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dm_env_rpc_client"


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Waits until no other process makes this file or folder, and has others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _hash(sources: Sequence[Path], tools: Sequence[str]) -> str:
    digest = hashlib.sha256(repr(tools).encode())
    protos = [*PROTOS.rglob("*.proto"), GOOGLE_RPC / "google/rpc/status.proto"]
    for path in sorted([*sources, *protos]):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def build(language: str, tools: tuple[tuple[str, str], ...], script: str) -> Path:
    """Builds what lies in the folder of a language and returns the folder of the results.

    Args:
      language: the folder, such as "cpp".
      tools: commands that tell whether the toolchain is there, each with the package that
        has it; what they print is part of what the result is known by.
      script: shell commands that build, in a folder of their own, from $SOURCES, $PROTOS and
        $GOOGLE_RPC.

    Raises:
      MissingToolchainError: one of the commands fails; names the package. Or the script
        exits with `CANNOT_INSTALL`.
      RuntimeError: the script fails otherwise; says why.
    """
    versions = []
    for command, package in tools:
        found = subprocess.run(
            command, shell=True, capture_output=True, text=True, timeout=60, check=False
        )
        if found.returncode != 0:
            raise MissingToolchainError(f"{command!r} fails; is {package} installed?")
        versions.append(found.stdout)
    sources = [path for path in (PEERS / language).rglob("*") if path.is_file()]
    folder = cache() / "peers" / f"{language}-{_hash(sources, [*versions, script])}"
    with alone(folder):
        if not folder.is_dir():
            _build(folder, language, script)
    return folder


def _build(folder: Path, language: str, script: str) -> None:
    print(f"building the peers in {language}...", file=sys.stderr, flush=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"building-{language}-"))
    try:
        built = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=scratch,
            env={
                **os.environ,
                "SOURCES": str(PEERS / language),
                "PROTOS": str(PROTOS),
                "GOOGLE_RPC": str(GOOGLE_RPC),
            },
            capture_output=True,
            text=True,
            timeout=patience(BUILD_SECONDS),
            check=False,
        )
        if built.returncode == CANNOT_INSTALL:
            raise MissingToolchainError(built.stderr[-4000:])
        if built.returncode != 0:
            raise RuntimeError(f"could not build the peers in {language}:\n{built.stderr[-4000:]}")
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
