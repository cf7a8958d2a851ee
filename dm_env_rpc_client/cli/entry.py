"""Where the command starts: before anything that may be missing is imported."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line."""
    try:
        from dm_env_rpc_client.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"dm-env-rpc needs the package {error.name}; install it with: "
            "pip install 'dm-env-rpc-client[cli]'"
        )
    app(prog_name="dm-env-rpc")
