"""Reports each error in one line, with a stable exit code and without a traceback.

With the environment variable `DM_ENV_RPC_TRACEBACK=1`, the traceback is printed before the error
line. With `DM_ENV_RPC_LOG=debug`, the whole log of the package is printed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import typer

from dm_env_rpc_client.cli.consoles import cell, console
from dm_env_rpc_client.extras import is_told
from dm_env_rpc_client.plain_text import one_line
from dm_env_rpc_client.system.sources import raised_by

REFUSED = 1
WRONG_USAGE = 2
NO_CONNECTION = 3
DEFECT = 70
INTERRUPTED = 130
TERMINATED = 143

TRACEBACK_VARIABLE = "DM_ENV_RPC_TRACEBACK"

LOG_VARIABLE = "DM_ENV_RPC_LOG"
"""The environment variable that sets the lowest log level to print, such as "debug"."""

_LEVELS = ("debug", "info", "warning", "error")

_SIGNALS_TO_END = [signal.SIGTERM, signal.SIGHUP]

# Typer exports the base class of its parser errors only as a base of BadParameter.
_ParserError = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")


class UsageError(Exception):
    """The command line is invalid; the message describes the mistake and the expected form."""


class Terminated(BaseException):
    """SIGTERM was received or the terminal was closed, so the process must clean up and exit."""


def end_in_order() -> None:
    """Make signals raise `Terminated`, in order to destroy worlds and restore the terminal."""

    def end(number: int, frame: FrameType | None) -> None:
        ignore_signals_to_end()
        raise Terminated

    for number in _SIGNALS_TO_END:
        # Under nohup, SIGHUP must stay ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end)


def what_stops() -> str:
    """Return what stops this command, either "Ctrl-C" or, if SIGINT is ignored, "SIGTERM".

    A shell without job control starts background processes with SIGINT ignored.
    """
    return "SIGTERM" if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else "Ctrl-C"


@contextlib.contextmanager
def ending(end: Callable[[BaseException], None]) -> Iterator[None]:
    """On a termination signal, pass the exception to `end` instead of raising it.

    Event loops need this function, because they can lose an exception raised by a signal handler.

    Args:
      end: called with `Terminated`, or with KeyboardInterrupt for SIGINT.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            end(KeyboardInterrupt())
        else:
            ignore_signals_to_end()
            end(Terminated())

    previous = {number: signal.getsignal(number) for number in (*_SIGNALS_TO_END, signal.SIGINT)}
    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


def ignore_signals_to_end() -> None:
    """Ignore further termination signals during cleanup, because signals often come in bursts."""
    for number in _SIGNALS_TO_END:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an exception raised by a command into one line on stderr and an exit code."""
    try:
        yield
    except (typer.Exit, SystemExit):
        raise
    except BaseException as error:
        message, code = _describe(error)
        with contextlib.suppress(OSError):  # Stderr may be closed.
            _show_traceback(error)
            if message:
                # The last output of a server keeps its own lines.
                first, *printed = message.splitlines() if _has_output(error) else [message]
                console.print(f"[bold red]error:[/] {cell(first)}")
                for line in printed:
                    console.print(cell(line), highlight=False)
        raise typer.Exit(code) from None


class OneLine(logging.Formatter):
    """A formatter that turns each log record into one line of text that is safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            _show_traceback(error)
            text = f"{text}: {raised_by(error)}"
        return one_line(text)


def log_in_one_line() -> None:
    """Print warnings and errors of this package and of served environments without tracebacks."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    level = os.environ.get(LOG_VARIABLE, "")
    if level:
        if level not in _LEVELS:
            console.print(
                f"[bold yellow]warning:[/] {LOG_VARIABLE} is one of {', '.join(_LEVELS)}; "
                f"got {cell(repr(level))}"
            )
            return
        logging.getLogger("dm_env_rpc_client").setLevel(level.upper())


def _show_traceback(error: BaseException) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        console.print("".join(traceback.format_exception(error)), markup=False)


def _describe(error: BaseException) -> tuple[str, int]:
    from dm_env_rpc_client.errors import (
        ON_THE_SERVER,
        ConnectionLostError,
        DeadlineExceededError,
        DmEnvRpcClientError,
        LaunchError,
        ProtocolError,
        SpecError,
    )

    if isinstance(error, ImportError):
        # If the import of a C module is interrupted, it raises ImportError from the interrupt.
        error = next((each for each in _causes(error) if not isinstance(each, Exception)), error)
    if isinstance(error, BrokenPipeError):
        return "", REFUSED  # The reader, such as `head`, has closed the pipe.
    if isinstance(error, _ParserError):
        return _parser_message(error), WRONG_USAGE
    if is_told(error):
        return str(error), WRONG_USAGE  # An extra is not installed.
    # Before Python 3.11 the message of an error contains the server's traceback.
    text = str(error).partition(f"\n{ON_THE_SERVER}")[0]
    if isinstance(error, ConnectionLostError) and isinstance(error.__cause__, ProtocolError):
        return text, REFUSED  # The same code as for a request that failed with the cause itself.
    for kinds, message, code in (
        (KeyboardInterrupt, "interrupted", INTERRUPTED),
        (Terminated, "terminated", TERMINATED),
        (UsageError | SpecError, text, WRONG_USAGE),
        (ConnectionError | DeadlineExceededError | LaunchError, text, NO_CONNECTION),
        (DmEnvRpcClientError | OSError, text, REFUSED),
    ):
        if isinstance(error, kinds):
            return message, code
    report = f"please report it with the traceback, which {TRACEBACK_VARIABLE}=1 shows"
    return f"this is a bug in dm-env-rpc: {raised_by(error)}; {report}", DEFECT


def _has_output(error: BaseException) -> bool:
    from dm_env_rpc_client.errors import ConnectionLostError, LaunchError

    if isinstance(error, ConnectionLostError):
        return error.server_end is not None
    return isinstance(error, LaunchError) or isinstance(error.__cause__, LaunchError)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _parser_message(error: Any) -> str:
    message = error.format_message().rstrip(".")
    command = error.ctx.command_path if error.ctx is not None else "dm-env-rpc"
    return f"{message}; see {command} --help"
