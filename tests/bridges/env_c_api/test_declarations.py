"""The declarations that are written out for C are those that libraries are called by."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dm_env_rpc_client.bridges.env_c_api.declarations import VERSIONS, header, layout
from dm_env_rpc_client.errors import SpecError
from tests.support.stopwatch import patience

_PROGRAM = """
#include <stddef.h>
#include "env_c_api.h"
_Static_assert(sizeof(EnvCApi) == {size}, "the size");
_Static_assert(offsetof(EnvCApi, advance) == {size} - sizeof(void*), "what comes last");
"""


@pytest.mark.compiler
@pytest.mark.parametrize("version", VERSIONS)
def test_a_compiler_lays_the_struct_out_in_the_same_way(version: str, tmp_path: Path) -> None:
    (tmp_path / "env_c_api.h").write_text(header(version))
    program = tmp_path / "program.c"
    program.write_text(_PROGRAM.format(size=layout(version).size))
    command = ["cc", "-Wall", "-Werror", "-c", str(program), "-o", str(tmp_path / "o")]
    subprocess.run(command, check=True, timeout=patience(60))


def test_only_known_versions_are_declared() -> None:
    with pytest.raises(SpecError, match=r"unknown EnvCApi version '3\.0'"):
        header("3.0")
