"""Where the command starts: before anything that may be missing is imported."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line."""
    _open_closed_streams()
    # grpc writes to stderr by itself what it raises as well.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from dm_env_rpc_client.cli.app import app
        from dm_env_rpc_client.cli.failures import end_in_order, log_in_one_line

        end_in_order()
        log_in_one_line()
        app(prog_name="dm-env-rpc")
    except KeyboardInterrupt:
        # Also while the command line is being built, before its own handling begins.
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"dm-env-rpc needs the package {error.name}; install it with: "
            "pip install 'dm-env-rpc-client[cli]'"
        )


def _open_closed_streams() -> None:
    """Makes what the shell closed (`>&-`) fail as files do, and nothing else take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # For the other direction, so that what reads or writes there is told.
            other_way = os.O_WRONLY if name == "stdin" else os.O_RDONLY
            descriptor = os.open(os.devnull, other_way)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a file may have an encoding that lacks a character.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
