"""The command `python -m dm_env_rpc_client.server MODULE:NAME ADDRESS`.

The command serves until it receives SIGTERM. If the option `--thread main` precedes the arguments,
the command calls all methods of the environments in the main thread. `dm-env-rpc serve` does the
same and has more options, but unlike this command it requires an extra. Both commands exit with
code 0 if all environments were closed, 2 if the environment does not exist, and 143 (SIGTERM) or
130 (SIGINT) if a signal ended the server before all environments were closed.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Literal

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server import serve

_THREAD = ["--thread", "main"]


def _main(reference: str, address: str, thread: Literal["main"] | None) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        try:
            server = serve(reference, address, thread=thread)
        except SpecError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(2)  # As `dm-env-rpc serve` exits where there is no such environment.
        with server:
            # Flushed, also to a file or a pipe: the launching process may wait for this line.
            print(f"serving {reference} at {server.address}", flush=True)  # noqa: T201
            try:
                server.wait()
            except KeyboardInterrupt:
                if not server.stop():
                    raise
    except KeyboardInterrupt as told:
        sys.exit(128 + told.args[0])


def _interrupt(number: int, frame: FrameType | None) -> None:
    # SIGTERM may follow: one signal reaches the process group, another comes from the launcher.
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    words = sys.argv[1:]
    is_main = words[:2] == _THREAD
    words = words[2:] if is_main else words
    if len(words) != 2:
        usage = "python -m dm_env_rpc_client.server [--thread main] MODULE:NAME ADDRESS"
        sys.stderr.write(f"usage: {usage}\n")
        sys.exit(2)
    _main(words[0], words[1], "main" if is_main else None)
