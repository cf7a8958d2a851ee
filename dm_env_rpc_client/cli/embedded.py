"""A Catch server in a process of its own, for commands without an address.

The process ends when the command ends, even if the command is killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from dm_env_rpc_client.errors import ConnectionLostError
from dm_env_rpc_client.runtime import children

__all__ = ["catch_server"]

_STOP_SECONDS = 5.0


@contextlib.contextmanager
def catch_server() -> Iterator[str]:
    """Runs the server and yields its address."""
    process = children.start(
        [sys.executable, "-m", __name__],
        stdout=subprocess.PIPE,
        # Ctrl-C is for the command, which then ends the server.
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        if not address:
            raise ConnectionLostError(
                f"the embedded server did not start (exit code {process.wait(_STOP_SECONDS)})"
            )
        yield address
    finally:
        process.stdout.close()
        children.end(process, _STOP_SECONDS)


def _main() -> None:
    from dm_env_rpc_client.server import Catch, serve

    parent = children.Parent.from_start()
    children.exit_with(parent, grace=_STOP_SECONDS)
    # The parent may have ended in the meantime.
    with serve(Catch) as server, contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{server.address}\n".encode())
        parent.wait()


if __name__ == "__main__":
    _main()
