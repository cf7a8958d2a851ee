"""Environments whose rows are spread over processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dm_env
import gymnasium
import numpy as np

from dm_env_rpc_client.server import Catch, Race
from tests.server import hosted
from tests.server.batches.test_batches import (
    Boundless,
    Counting,
    Discounted,
    Liar,
    Reserved,
    Variable,
    Wordy,
    large,
    varying,
)
from tests.server.batches.test_row_lifetimes import Seeded, Valued
from tests.server.structures.hosted import Structured, array
from tests.support.environments import Robot
from tests.support.scripted import settles
from tests.travelling.environments.usual import Usual


class Meeting(Counting):
    """Each step waits until the other row is in one, too; they meet in a folder."""

    def __init__(self, folder: str, index: int):
        super().__init__(length=9)
        self._mine, self._others = (Path(folder) / str(each) for each in (index, 1 - index))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._mine.touch()
        assert settles(self._others.exists)
        return super().step(action)


class Once(hosted.Where):
    """Cannot be made again while a file exists."""

    def __init__(self, path: str):
        super().__init__()
        if Path(path).exists():
            raise OSError("no second engine")


class Framed(Usual):
    """Renders its index, in another shape from 9 on."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as in Gymnasium
    render_mode = "rgb_array"

    def __init__(self, index: int = 0):
        super().__init__(index)

    def render(self) -> Any:
        return np.full((2 + (self.row > 8), 3, 3), self.row, np.uint8)


class Two(str):
    """Is pickled, and cannot be unpickled: its constructor needs two arguments."""

    def __new__(cls, first: str, second: str) -> Two:
        return super().__new__(cls, first + second)


ODD: Mapping[str, Callable[[], dict[Any, Any]]] = {
    "unsent": lambda: {type("Local", (str,), {})("a"): "x"},
    "key": lambda: {Two("na", "me"): Two("b", "ob")},
}


class Unread(Usual):
    """Its info repeats the action. If the action is odd, that of row 1 has another part."""

    action_space = gymnasium.spaces.Discrete(99)

    def __init__(self, index: int = 0, kind: str = "key"):
        super().__init__(index)
        self._kind = kind

    def ends(self) -> tuple[bool, bool]:
        return False, False

    def inform(self) -> dict[Any, Any]:
        heard = -1 if self.action is None else int(self.action)
        odd = ODD[self._kind]() if heard % 2 and heard > 0 and self.row == 1 else {}
        return {"heard": heard, "row": self.row, **odd}


class Exits(hosted.Where):
    """Ends its program, as it believes."""

    def step(self, action: Any) -> dm_env.TimeStep:
        if action["do"] == hosted.RAISE:
            raise SystemExit("told to")
        return super().step(action)


class ClosingTwo(gymnasium.vector.SyncVectorEnv):
    """Is a batch by itself; leaves a file in a folder as `hosted.Closing` does."""

    def __init__(self, folder: str):
        super().__init__([Seeded] * 2)
        self._path = Path(folder) / f"{os.getpid()}-{id(self)}.open"
        self._path.touch()

    def close_extras(self, **keywords: Any) -> None:
        super().close_extras(**keywords)
        self._path.rename(self._path.with_suffix(".closed"))


def two(num_envs: int = 2) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")


def two_unasked() -> Any:
    return two()


class Named(Seeded):
    """Has a name that is reserved."""

    observation_space: Any = gymnasium.spaces.Dict({"step_type": Seeded.observation_space})


class Masked(Seeded):
    """The same among its actions."""

    action_space: Any = gymnasium.spaces.Dict({"step_mask": Seeded.action_space})


def vector_of(kind: type[Seeded], num_envs: int) -> Any:
    return gymnasium.vector.SyncVectorEnv([kind] * num_envs)


SEEN = array()


def ordered(structure: int = 0) -> Structured:
    """Observes the same spec in one of several structures."""
    return Structured([{"a": SEEN}, {"b": SEEN}, (SEEN,), {"a": {"a": SEEN}}, SEEN][structure])


SERVED: Mapping[str, Callable[..., Any]] = {
    "counting": Counting, "discounted": Discounted, "robot": Robot, "liar": Liar, "wordy": Wordy,
    "large": large, "boundless": Boundless, "varying": varying, "variable": Variable,
    "reserved": Reserved, "race": Race, "where": hosted.Where, "meeting": Meeting, "once": Once,
    "closing": hosted.Closing, "framed": Framed, "two": two,
    "two unasked": two_unasked, "seeded": Seeded, "closing two": ClosingTwo,
    "exits": Exits, "unread": Unread, "catch": Catch, "valued": Valued,
    "ordered": ordered, "named": functools.partial(vector_of, Named),
    "masked": functools.partial(vector_of, Masked),
}  # fmt: skip
