"""What becomes of errors, signals and warnings: lines and exit codes."""

from __future__ import annotations

import logging
import re
import socket
import sys
from typing import Any

import pytest
import typer
import typer.main
from google.rpc import status_pb2

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    __version__,
)
from dm_env_rpc_client.cli import consoles, failures
from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.cli.failures import Terminated, UsageError, one_line_errors
from tests.cli.commands import invoke
from tests.support.forks import run_command


def interrupted_import() -> ImportError:
    error = ImportError("initialization failed")
    error.__cause__ = KeyboardInterrupt()
    return error


REFUSAL = DmEnvRpcError(status_pb2.Status(code=5, message="no\nworld"))

ERRORS: list[tuple[BaseException, int, str]] = [
    (UsageError("what is wrong"), 2, "error: what is wrong"),
    (SpecError("a [bold]value[/]"), 2, "error: a [bold]value[/]"),
    (typer.BadParameter("x"), 2, "error: Invalid value: x; see dm-env-rpc --help"),
    (ConnectionLostError("gone"), 3, "error: gone"),
    (DeadlineExceededError("late"), 3, "error: late"),
    (REFUSAL, 1, "error: the server answered NOT_FOUND: no world"),
    (ProtocolError("broken"), 1, "error: broken"),
    (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device"),
    (BrokenPipeError(), 1, ""),
    (KeyboardInterrupt(), 130, "error: interrupted"),
    (interrupted_import(), 130, "error: interrupted"),
    (Terminated(), 143, "error: terminated"),
    (ZeroDivisionError("oh"), 70, "error: this is a bug in dm-env-rpc: ZeroDivisionError: oh"),
    (ImportError("no x"), 70, "error: this is a bug in dm-env-rpc: ImportError: no x"),
    (UsageError("\x1b[2J\x07"), 2, r"error: \x1b[2J\x07"),
]


@pytest.mark.parametrize(("error", "code", "line"), ERRORS, ids=[repr(row[0]) for row in ERRORS])
def test_an_error_is_a_line_and_a_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise error
    assert ended.value.exit_code == code
    shown = capsys.readouterr().err
    assert shown.startswith(line)
    assert shown.count("\n") == (1 if line else 0)


def test_exits_are_let_through() -> None:
    with pytest.raises(SystemExit), one_line_errors():
        sys.exit(4)
    with pytest.raises(typer.Exit), one_line_errors():
        raise typer.Exit(5)


def test_an_error_that_nobody_can_read_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("nobody is there")

    monkeypatch.setattr(consoles.console, "print", fail)
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise UsageError("what is wrong")
    assert ended.value.exit_code == 2


def test_warnings_are_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    failures.log_in_one_line()
    log = logging.getLogger("dm_env_rpc_client.tests")
    log.warning("two\nlines %s", "here")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    log.info("not told")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "warning: two lines here"
    assert second.startswith("error: it failed: ValueError: why (")
    assert second.endswith(")")


def test_without_arguments_there_is_help() -> None:
    assert "Examples:" in invoke().stdout
    shown = invoke("properties").stdout
    assert "list" in shown
    assert "bool" not in shown + invoke("--help").stdout


GROUP: Any = typer.main.get_command(app)
COMMANDS = [*(GROUP.commands.keys() - {"properties"})]
COMMANDS += [f"properties {name}" for name in GROUP.commands["properties"].commands]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_has_examples_of_the_command(command: str) -> None:
    text = invoke(*command.split(), "--help").stdout
    assert f"dm-env-rpc {command}" in text.split("Examples:")[1]
    assert "bool" not in text, "a flag takes no value"
    assert invoke(*command.split(), "-h").stdout == text


def test_the_version() -> None:
    assert invoke("--version").stdout == f"dm-env-rpc {__version__}\n"


def test_a_command_says_after_a_second_that_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
    ended = run_command("run", address, "--timeout", "2.5")
    assert ended.returncode == 3
    first, second = ended.stderr.strip().splitlines()
    told = rf"warning: no connection to {address} yet: Connection refused; trying again for [12] s"
    assert re.match(told, first)
    assert second.startswith(f"error: could not connect to {address} within 2.5 s: ")
