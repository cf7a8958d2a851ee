"""Errors as one line with a stable exit code; a user of the command sees no traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import rich.console
import rich.markup
import typer

from dm_env_rpc_client.errors import (
    DeadlineExceededError,
    DmEnvRpcClientError,
    SpecError,
)

__all__ = ["UsageError", "console", "one_line_errors"]

REFUSED = 1
WRONG_USAGE = 2
NO_CONNECTION = 3
INTERRUPTED = 130

console = rich.console.Console(stderr=True, soft_wrap=True, highlight=False)
"""For everything but results, which go to stdout."""


class UsageError(Exception):
    """The command was called wrongly; says how and what would be right."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns the errors of a command's body into a line on stderr and an exit code."""
    try:
        yield
    except (UsageError, SpecError) as error:
        _exit(str(error), WRONG_USAGE)
    except (ConnectionError, DeadlineExceededError) as error:
        _exit(str(error), NO_CONNECTION)
    except (DmEnvRpcClientError, OSError) as error:
        _exit(str(error), REFUSED)
    except KeyboardInterrupt:
        _exit("interrupted", INTERRUPTED)


def _exit(message: str, code: int) -> None:
    console.print(f"[bold red]error:[/] {rich.markup.escape(' '.join(message.split()))}")
    raise typer.Exit(code)
