"""A Catch server in a process of its own, for commands without an address.

The process ends when its standard input does, so it cannot outlive the command, however
that ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from dm_env_rpc_client.errors import ConnectionLostError

__all__ = ["catch_server"]

_STOP_SECONDS = 5.0


@contextlib.contextmanager
def catch_server() -> Iterator[str]:
    """Runs the server and yields its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C is for the command, which then ends the server.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise ConnectionLostError(
                f"the embedded server did not start (exit code {process.wait(_STOP_SECONDS)})"
            )
        yield address
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _main() -> None:
    from dm_env_rpc_client.server import Catch, serve

    # The parent may have gone in the meantime.
    with serve(Catch) as server, contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{server.address}\n".encode())
        sys.stdin.read()


if __name__ == "__main__":
    _main()
