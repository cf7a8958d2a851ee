"""Behaviour shared by all commands: one-line errors, exit codes, and help without arguments."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import typer
import typer.core

from dm_env_rpc_client.cli.failures import INTERRUPTED, one_line_errors

_COMPLETION_VARIABLE = "_DM_ENV_RPC_COMPLETE"


def examples(*lines: str) -> str:
    """Format command `lines` as the examples at the end of a help text."""
    return "Examples:\n\n" + "\n".join(f"  {line}" for line in lines)


class Commands(typer.core.TyperGroup):
    """A group of commands that report each error in one line, without a traceback."""

    _has_reported = False

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the group."""
        return _without_types_of_flags(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types_of_flags(command.get_params(ctx))
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show the help text and exit with code 0 if no arguments are given."""
        return super().parse_args(ctx, args or ["--help"])

    def invoke(self, ctx: Any) -> Any:
        """Run a command and turn an exception into one line of output and an exit code."""
        try:
            with one_line_errors():
                return super().invoke(ctx)
        except typer.Exit:
            self._has_reported = True
            raise

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line, run the command and exit."""
        if _COMPLETION_VARIABLE in os.environ:
            # The shell completes while the user types, so errors must not appear in the line.
            with contextlib.suppress(Exception):
                super().main(*args, **kwargs)
            sys.exit(1)
        try:
            with one_line_errors():
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
                if code == INTERRUPTED and not self._has_reported:
                    # Typer turns an interrupt before `invoke` into this code, without a message.
                    raise KeyboardInterrupt
                if not code:
                    sys.stdout.flush()
        except typer.Exit as ended:
            code = ended.exit_code
        _discard_unwritable_output()
        sys.exit(code if isinstance(code, int) else 0)


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    """Hide the type `<bool>` in the help text of flags that accept no value."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


def _discard_unwritable_output() -> None:
    """Discard unwritable output; otherwise, Python would retry at exit and report another error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
