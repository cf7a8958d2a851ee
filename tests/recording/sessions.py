"""Sessions that are recorded, and what compares them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dm_env
import numpy as np

import dm_env_rpc_client
from dm_env_rpc_client.recording import Entry, Recorder, Scan
from dm_env_rpc_client.server import serve

SETTINGS = {"seed": 3, "rows": 5, "columns": 4}


def move(step: int) -> dict[str, Any]:
    """The action of a step: all sorts of moves, the same in every run."""
    return {"paddle": (step * step + step // 7) % 3}


def play(
    address: str, steps: int, make: Callable[..., Any] = dm_env_rpc_client.make, **kwargs: Any
) -> list[dm_env.TimeStep]:
    """Plays Catch and returns the TimeSteps, the first one beside `steps` others."""
    with make(address, SETTINGS, **kwargs) as env:
        return [env.reset(), *(env.step(move(step)) for step in range(steps))]


@contextlib.contextmanager
def recorded(
    path: Path, environment: Any, settings: Any = None, **options: Any
) -> Iterator[dm_env_rpc_client.DmEnvAdaptor]:
    """Yields an environment of a server of its own, which is recorded."""
    with (
        serve(environment) as server,
        dm_env_rpc_client.make(server.address, settings or {}, record=path, **options) as env,
    ):
        yield env


def assert_same(some: Sequence[dm_env.TimeStep], others: Sequence[dm_env.TimeStep]) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert one[:3] == other[:3]
        np.testing.assert_array_equal(one.observation["board"], other.observation["board"])


def entries(path: Path) -> list[Entry]:
    return list(Scan(path))


def messages(path: Path) -> list[tuple[int, bool, int, bytes]]:
    """The messages of a recording, without their times."""
    return [
        (entry.connection.number, entry.is_request, entry.sequence, entry.message)
        for entry in Scan(path)
    ]


def record(path: Path, *exchanges: tuple[bytes, bytes]) -> None:
    """Records a connection with these requests and answers."""
    with Recorder(path) as recorder:
        recording = recorder.connection("localhost:1", {})
        for request, answer in exchanges:
            recording.request(request)
            recording.answer(answer)
