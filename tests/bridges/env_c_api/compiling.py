"""Compiles the test libraries with the system's C compiler."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tempfile
from pathlib import Path

from tests.peers.building import alone, cache
from tests.support.groups import need
from tests.support.stopwatch import patience

SOURCES = Path(__file__).parent / "libraries"
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")

_MACROS = {"1.4": 14, "2.0": 20, "2.1": 21, "2.2": 22}


@functools.cache
def _sources() -> bytes:
    """What a library depends on: the sources, and the compiler."""
    compiler = subprocess.check_output(["cc", "--version"], timeout=patience(60))
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))
    return compiler + b"".join(path.read_bytes() for path in files)


@functools.cache
def compile_library(source: str, version: str, *flags: str) -> str:
    """Returns the path of a shared library; skips the test if nothing compiles it.

    It lies in the user's cache and is compiled again if the sources change.
    """
    need("compiler")
    define = f"-DENV_C_API_VERSION={_MACROS[version]}"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-fPIC", "-shared", define, *flags]
    known_by = hashlib.sha256(repr(command).encode() + _sources()).hexdigest()[:16]
    path = cache() / "env_c_api" / f"{source}_{version}_{known_by}.so"
    with alone(path):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                compiled = Path(scratch) / path.name
                files = [str(SOURCES / f"{source}.c"), "-o", str(compiled)]
                subprocess.run([*command, *files], check=True, timeout=patience(60))
                compiled.rename(path)
    return str(path)
