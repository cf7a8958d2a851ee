"""An environment whose C code keeps the GIL: while it computes, no thread of its process runs."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

from dm_env_rpc_client.server import Catch, serve

_usleep = ctypes.PyDLL(None).usleep  # Functions of a PyDLL are called with the GIL.


class Holding(Catch):
    """Catch that keeps the GIL for some seconds.

    Args:
      create: how long in the constructor.
      reset: how long in each reset.
      step: how long in each step.
    """

    def __init__(self, create: float = 0.0, reset: float = 0.0, step: float = 0.0):
        self._reset_seconds, self._step_seconds = reset, step
        hold(create)
        super().__init__()

    def reset(self) -> Any:
        hold(self._reset_seconds)
        return super().reset()

    def step(self, action: Any) -> Any:
        hold(self._step_seconds)
        return super().step(action)


def hold(seconds: float) -> None:
    """Keeps the GIL of this process."""
    ends = time.monotonic() + seconds
    while True:
        left = ends - time.monotonic()
        if left <= 0:
            break
        # In one call, between two of which another thread would get the GIL.
        _usleep(int(left * 1e6))


if __name__ == "__main__":
    kinds: dict[str, dict[str, Any]] = {
        "plain": {}, "main thread": {"thread": "main"}, "processes": {"processes": 1},
        "grpcio": {"transport": "grpc"},
    }  # fmt: skip
    source = "tests.support.holding:Holding"  # As a worker imports it.
    server = serve(source, sys.argv[2], insecure=True, **kinds[sys.argv[1]])
    print(server.address, flush=True)
    server.wait()
