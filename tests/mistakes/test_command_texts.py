"""What is given to a command that is no address, starts no server, and cannot be served."""

from __future__ import annotations

import concurrent.futures
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client.cli import consoles
from tests.support.forks import run_command

IN_PLACE_OF_AN_ADDRESS = [
    *(
        (f"{command} python:nomod:X{more}", "cannot import 'nomod': ModuleNotFoundError")
        for command, more in {
            "run": "", "inspect": "", "check": "", "health": "", "bench": "", "play": "",
            "properties list": "", "properties get": " key", "properties set": " key=1",
            "record a.mcap --upstream": "",
        }.items()
    ),
    ("inspect python:os:nothing", "'os' has no 'nothing'"),
    ("inspect python:os:sep", "os:sep is not callable"),
    ("inspect python:bad_syntax:make", "cannot import 'bad_syntax': SyntaxError"),
    ("inspect python:leaves:make", "cannot import 'leaves': SystemExit"),
    ("inspect python:X", "must be given as MODULE:NAME"),
    ("inspect python:", "must be given as MODULE:NAME"),
    ("inspect gymnasium://Nope-v0", "cannot make gymnasium://Nope-v0: NameNotFound"),
    ("inspect gymnasium://", "cannot make gymnasium://: Error: Malformed environment ID"),
    ("inspect dm_control://cartpole", "error: "),  # Whether the package is there or not.
    ("inspect bsuite://nope/0", "error: "),
    ("inspect pettingzoo://nope", "error: "),
    ("inspect gymnasum://CartPole-v1", "an address looks like localhost:50051"),
    ("inspect process:", "expected process: followed by what to start"),
    ("inspect process:'engine", "cannot split the command"),
    ("inspect process:engine", "does not specify where to listen: include {port} or {socket} in"),
    ("inspect docker:", "expected docker: followed by what to start"),
    ("inspect unix:", "an address looks like localhost:50051"),
    ("inspect nomod:X", "and a server to start like process:COMMAND"),
]  # fmt: skip
"""What names no server and nothing that starts one."""

TO_SERVE = [
    ("python:nomod:X", "for what connects to one; serve takes nomod:X"),
    ("python:", "serve takes MODULE:FACTORY"),
    ("process:./engine", "serve takes MODULE:FACTORY"),
    ("docker:image", "serve takes MODULE:FACTORY"),
    ("nomod:X", "cannot import 'nomod'"),
    ("os:nothing", "'os' has no 'nothing'"),
    ("os:sep", "os:sep is not callable"),
    ("bad_syntax:make", "cannot import 'bad_syntax': SyntaxError"),
    ("leaves:make", "cannot import 'leaves': SystemExit"),
    ("nomod:X --python /no/such/python", "cannot be started: [Errno 2] No such file"),
    (f"nomod:X --python {sys.executable}", "cannot import 'nomod'"),
    ("os:sep --python true", "is not a Python interpreter"),
]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "bad_syntax.py").write_text("def make(:")
    (folder / "leaves.py").write_text("import sys\n\nsys.exit('no licence')")
    lines = [line for line, _ in IN_PLACE_OF_AN_ADDRESS]
    lines += [f"serve {what} --address localhost:0" for what, _ in TO_SERVE]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ended = pool.map(lambda line: run_command(*line.split(" "), cwd=folder), lines)
        return dict(zip(lines, ended, strict=True))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *IN_PLACE_OF_AN_ADDRESS,
        *((f"serve {what} --address localhost:0", s) for what, s in TO_SERVE),
    ],
)
def test_a_source_that_cannot_be_read_or_imported_is_wrong_usage(
    line: str, said: str, commands: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    ended = commands[line]
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: ")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_that_ends_for_another_reason_is_no_wrong_usage(tmp_path: Path) -> None:
    """Its exit code is its own, and the text has been understood."""
    (tmp_path / "engine").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "engine").chmod(0o755)
    ended = run_command("inspect", "process:./engine {port}", cwd=tmp_path)
    assert ended.returncode == 3
    assert "ended with exit code 2: ./engine" in ended.stderr


@pytest.mark.parametrize(("total", "shown"), [(None, False), (5, True)])
def test_layers_are_shown_once_there_are_any(total: int | None, shown: bool) -> None:
    written = io.StringIO()
    screen = consoles.Console(file=written, force_terminal=True, width=100)
    with consoles.progress(consoles.Layers(), screen=screen) as bar:
        bar.add_task("pulling", total=total, completed=2)
    assert ("2/5 layers" in written.getvalue()) is shown
    assert "/?" not in written.getvalue()
