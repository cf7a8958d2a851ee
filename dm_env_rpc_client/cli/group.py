"""What holds for the whole command line: one-line errors, exit codes, help without arguments."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import typer
import typer.core

from dm_env_rpc_client.cli.failures import one_line_errors

__all__ = ["Commands", "examples"]


_COMPLETION_VARIABLE = "_DM_ENV_RPC_COMPLETE"


def examples(*lines: str) -> str:
    """Returns the end of a help text that shows commands to try."""
    return "Examples:\n\n" + "\n".join(f"  {line}" for line in lines)


class Commands(typer.core.TyperGroup):
    """A group of commands in which nothing ends with a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without arguments there is help, and that is no error."""
        return super().parse_args(ctx, args or ["--help"])

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; what it raises becomes a line and an exit code."""
        with one_line_errors():
            return super().invoke(ctx)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Parses the command line, runs the command and exits."""
        if _COMPLETION_VARIABLE in os.environ:
            # The shell asks while somebody types: no word about what goes wrong.
            with contextlib.suppress(Exception):
                super().main(*args, **kwargs)
            sys.exit(1)
        try:
            with one_line_errors():
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
                sys.stdout.flush()
        except typer.Exit as ended:
            code = ended.exit_code
        _forget_what_cannot_be_written()
        sys.exit(code if isinstance(code, int) else 0)


def _forget_what_cannot_be_written() -> None:
    """Python would try again at exit, and complain in its own way."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
