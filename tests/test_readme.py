"""README tells the truth: its snippets run, one after the other, against a real server."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.testing

from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.protocol.lifecycle import diagram
from dm_env_rpc_client.server import Catch, serve
from tests.bridges.env_c_api.compiling import compile_library

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
ADDRESS = "localhost:50051"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The server that README asks its reader to start; on a port that is free here."""
    with serve(Catch) as server:
        yield server.address


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_are_snippets_for_everything_promised() -> None:
    assert len(snippets()) >= 7


def test_the_snippets_run_in_order(address: str) -> None:
    # What README calls by names of its reader's own.
    stand_ins = {
        ADDRESS: address,
        "./libengine.so": compile_library("complete", "1.4"),
        "engine_connect": "complete_connect",
    }
    namespace: dict[str, object] = {"__name__": "readme"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, snippet in enumerate(snippets()):
            for name, stand_in in stand_ins.items():
                snippet = snippet.replace(name, stand_in)  # noqa: PLW2901  # step by step
            code = compile(snippet, f"README snippet {number}", "exec")
            exec(code, namespace)
    # What a comment says that a line prints is what it prints.
    for promised in re.findall(r"print\(.*\)  # (.*)", README):
        for part in promised.split("..."):
            assert part in printed.getvalue(), promised


def test_the_picture_of_the_states_is_drawn_from_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in README


def test_there_are_exactly_two_set_up_commands_of_one_line() -> None:
    section = README.split("## Set up")[1].split("\n## ")[0]
    commands = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert len(commands) == 2
    assert "dm-env-rpc run" in commands[0]
    assert "pytest" in commands[1]


def test_every_command_that_is_mentioned_exists() -> None:
    names = set(re.findall(r"dm-env-rpc ([a-z]+)", README))
    assert {"run", "serve", "inspect"} <= names
    for name in sorted(names):
        assert typer.testing.CliRunner().invoke(app, [name, "--help"]).exit_code == 0, name


def test_the_port_in_readme_is_the_default_of_serve() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dm_env_rpc_client.cli", "serve", "catch", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        # It says where it listens, or that it cannot: the port may be taken on this machine.
        assert ADDRESS in process.stdout.readline()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
