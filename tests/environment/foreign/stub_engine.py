"""A small engine, a program of its own, on the modules of PyPI's dm-env-rpc.

    python -m tests.environment.foreign.stub_engine ADDRESS

It prints the name of each request that it gets, and "stream ended" after each stream.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

from dm_env_rpc.v1 import tensor_utils

from tests.compliance import playground
from tests.compliance.test_properties import Properties


class Engine(Properties):
    """Knows who may join, and keeps the properties that are written."""

    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from super().stream(requests)
        finally:
            print("stream ended", flush=True)

    def answers(self, request: Any) -> Iterator[Any]:
        print(request.WhichOneof("payload"), flush=True)
        yield from super().answers(request)

    def on_join_world(self, request: Any) -> Any:
        if tensor_utils.unpack_tensor(request.settings["agent_name"]) == "nobody":
            raise playground.RequestError("there is no such agent")
        request.settings.clear()
        return super().on_join_world(request)

    def write_property(self, request: Any) -> Any:
        self.values[request.key] = request.value
        return super().write_property(request)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with playground.serve(Engine, sys.argv[1]):
        signal.sigwait({signal.SIGTERM})
