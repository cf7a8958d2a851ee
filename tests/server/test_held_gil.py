"""Worker processes: the server answers while an environment's C code holds the GIL."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any

import dm_env

from dm_env_rpc_client import make
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.health_check import check_health
from tests.support.environments import Echo
from tests.support.stopwatch import patience


class HoldsTheGil(Echo):
    """A step says that it has begun, and calls C code that returns when the test writes."""

    def __init__(self, begun: str, end: str):
        super().__init__()
        self._begun = os.open(begun, os.O_RDWR)
        self._end = os.open(end, os.O_RDWR)

    def step(self, action: Any) -> dm_env.TimeStep:
        os.write(self._begun, b".")
        # PyDLL does not release the GIL.
        ctypes.PyDLL(None).read(self._end, ctypes.create_string_buffer(1), 1)
        return super().step(action)

    def close(self) -> None:
        os.close(self._begun)
        os.close(self._end)


def test_health_checks_are_answered_while_an_environment_holds_the_gil(tmp_path: Path) -> None:
    begun, end = str(tmp_path / "begun"), str(tmp_path / "end")
    os.mkfifo(begun)
    os.mkfifo(end)
    reading, writing = os.open(begun, os.O_RDWR), os.open(end, os.O_RDWR)
    try:
        with (
            serve(HoldsTheGil, processes=1) as server,
            make(server.address, {"begun": begun, "end": end}) as env,
        ):
            env.reset()
            stepping = threading.Thread(target=env.step, args=({"value": 1},))
            stepping.start()
            try:
                assert os.read(reading, 1) == b"."
                health = check_health(Endpoint(server.address), "", patience(10.0))
                assert health.status == "SERVING"
                assert stepping.is_alive()
            finally:
                os.write(writing, b".")
                stepping.join()
    finally:
        os.close(reading)
        os.close(writing)
