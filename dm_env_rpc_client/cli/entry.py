"""The entry point of the command, which imports only packages that are always installed."""

from __future__ import annotations

import os
import sys

from dm_env_rpc_client.extras import importing, is_told


def main() -> None:
    """Run the command line."""
    _open_closed_streams()
    # Otherwise grpc also writes the errors that it raises to stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        with importing("cli", "dm-env-rpc needs"):
            from dm_env_rpc_client.cli.app import app
            from dm_env_rpc_client.cli.failures import end_in_order, log_in_one_line

        end_in_order()
        log_in_one_line()
        app(prog_name="dm-env-rpc")
    except KeyboardInterrupt:
        # Only during imports and while typer builds the command line; later, `Commands` handles it.
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    except ModuleNotFoundError as error:
        if not is_told(error):
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def _open_closed_streams() -> None:
    """Reopen streams closed by the shell (`>&-`), so that no other file gets their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Opened for the other direction, so that its use remains an error.
            other_way = os.O_WRONLY if name == "stdin" else os.O_RDONLY
            descriptor = os.open(os.devnull, other_way)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # The encoding of a terminal or file may lack a character.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
