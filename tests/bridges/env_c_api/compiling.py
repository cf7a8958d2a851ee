"""Compiles the test libraries with the system's C compiler."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.groups import need

SOURCES = Path(__file__).parent
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")

_MACROS = {"1.4": 14, "2.0": 20, "2.1": 21, "2.2": 22}


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="env_c_api_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def compile_library(source: str, version: str, *flags: str) -> str:
    """Returns the path of a shared library; skips the test if nothing compiles it."""
    need("compiler")
    number = len(list(_folder().iterdir()))
    path = _folder() / f"{number}_{source}_{version}.so"
    define = f"-DENV_C_API_VERSION={_MACROS[version]}"
    command = ["cc", "-std=gnu11", "-O1", "-Wall", "-fPIC", "-shared", define, *flags]
    subprocess.run(
        [*command, str(SOURCES / f"{source}.c"), "-o", str(path)], check=True, timeout=60
    )
    return str(path)
