"""What actors are given in tests: environments and policies. Actors import this file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client.distributed import Batch, PolicyStep
from dm_env_rpc_client.server import Catch
from tests.support.environments import Echo

Random = Sequence[np.random.Generator]


def catch(index: int) -> dm_env.Environment:
    """Its balls depend on the index."""
    return Catch(rows=4 + 2, columns=5, seed=index)


def catching(timestep: dm_env.TimeStep, weights: Any, random: Random) -> PolicyStep:
    """Moves at random, less often as `weights` grow; tells its process."""
    moves = np.array([generator.integers(3) for generator in random])
    chances = np.array([generator.random() for generator in random])
    # What it sees takes part, so that a wrong observation is a wrong action.
    columns = timestep.observation["board"].sum(axis=1).argmax(axis=1)
    actions = {"paddle": np.where(chances < (weights or 0.0), 1, (moves + columns) % 3)}
    return PolicyStep(actions, {"chance": chances, "pid": np.full(len(moves), os.getpid())})


def counting(timestep: dm_env.TimeStep, weights: Any, random: Random) -> PolicyStep:
    """Actions for an Echo that no other environment and step has; tells its process."""
    values = np.array([generator.integers(1 << 40) for generator in random])
    return PolicyStep({"value": values}, {"pid": np.full(len(values), os.getpid())})


def echo(index: int) -> dm_env.Environment:
    """An Echo whose sequences have a length of its own."""
    return Echo(length=3 + index)


class Remembering:
    """A policy with a state: how many steps each sequence has had."""

    def __init__(self) -> None:
        self._counts: Any = 0

    def __call__(self, timestep: dm_env.TimeStep, weights: Any, random: Random) -> Any:
        self._counts = np.where(timestep.first(), 0, self._counts + 1)
        return {"value": self._counts}


class Closing(Echo):
    """Leaves a file behind when it is closed."""

    def __init__(self, closed: Path):
        super().__init__()
        self._closed = closed

    def close(self) -> None:
        self._closed.touch()


class Breaking(Echo):
    """Fails in its fifth step, as often as there are files in a folder: each time removes one."""

    def __init__(self, folder: str | Path):
        super().__init__()
        self._folder = Path(folder)
        self._taken = 0

    def step(self, action: Any) -> dm_env.TimeStep:
        self._taken += 1
        if self._taken == 5:
            for file in self._folder.iterdir():
                # Another one may take it at the same time.
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()
                    raise ConnectionError("the engine is gone")
        return super().step(action)


def without_pids(batch: Batch) -> Batch:
    """A batch as it would be in any process."""
    extras = {name: value for name, value in batch.extras.items() if name != "pid"}
    return batch._replace(extras=extras)
