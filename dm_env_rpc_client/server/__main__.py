"""Serves an environment: `python -m dm_env_rpc_client.server MODULE:NAME ADDRESS`, until SIGTERM.

`dm-env-rpc serve` does the same with more options; this needs no extra.
"""

from __future__ import annotations

import pkgutil
import signal
import sys
from types import FrameType

from dm_env_rpc_client.server import serve

__all__: list[str] = []


def _main(reference: str, address: str) -> None:
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with serve(pkgutil.resolve_name(reference), address) as server:
            print(f"serving {reference} at {server.address}")  # noqa: T201
            server.wait()
    except KeyboardInterrupt:
        pass


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    _main(*sys.argv[1:])
