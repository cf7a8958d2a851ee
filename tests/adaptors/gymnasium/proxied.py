"""Gymnasium environments with everything that has to travel, to be served."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Mission(spaces.Space[str]):
    """A space of strings that is not a Text, as MiniGrid's."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return f"go to door {self.np_random.integers(10)}"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and x.startswith("go to door ")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mission)

    __hash__ = None  # type: ignore[assignment]  # as other spaces


class Arms(spaces.Space[Any]):
    """A space of integers that is not Gymnasium's own."""

    def __init__(self) -> None:
        super().__init__((2,), np.int16)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return self.np_random.integers(5, size=2, dtype=np.int16)

    def contains(self, x: Any) -> bool:
        return isinstance(x, np.ndarray) and x.shape == (2,)


class Half(spaces.Discrete):
    """A subclass of a space that there is."""


def _small() -> spaces.Box:
    low, high = np.array([0, -np.inf], np.float32), np.array([np.inf, 1.5], np.float32)
    return spaces.Box(low, high)


SPACES: dict[str, spaces.Space[Any]] = {
    "box": _small(),
    "box of one number": spaces.Box(-1.0, 1.0, (), np.float64),
    "box of float16": spaces.Box(-1.0, 1.0, (3,), np.float16),
    "box without bounds": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "box of int64": spaces.Box(-(2**40), 2**40, (2,), np.int64),
    "box of int32 without bounds": spaces.Box(-np.inf, np.inf, (2,), np.int32),
    "box of int64 without an upper bound": spaces.Box(0, np.inf, (2,), np.int64),
    "box of int8, partly bounded": spaces.Box(
        np.array([-np.inf, 0]), np.array([3, np.inf]), dtype=np.int8
    ),
    "box of bool": spaces.Box(0, 1, (2,), np.bool_),
    "discrete": spaces.Discrete(3),
    "discrete with start": spaces.Discrete(5, start=-2),
    "multi-binary": spaces.MultiBinary(4),
    "multi-binary of two axes": spaces.MultiBinary([2, 3]),
    "multi-discrete": spaces.MultiDiscrete([2, 5, 3]),
    "multi-discrete with start": spaces.MultiDiscrete(
        np.array([[2, 5], [3, 4]]), start=np.array([[1, 0], [-1, 7]])
    ),
    "multi-discrete of int32": spaces.MultiDiscrete([2, 5], dtype=np.int32),
    "text": spaces.Text(8),
    "text with charset": spaces.Text(3, min_length=0, charset="zya \u00e4"),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Text(3))),
    "dict": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiBinary(2)}),
    "dict with difficult keys": spaces.Dict(
        [
            ("b.c", spaces.Discrete(2)),
            ("b", spaces.Dict({"c": spaces.Discrete(4), "%2E": spaces.Discrete(3)})),
            ("reward", spaces.Discrete(5)),
            ("discount", spaces.Discrete(5)),
            ("gymnasium", spaces.Discrete(5)),
            ("observation", spaces.Discrete(5)),
            ("", spaces.Discrete(6)),
        ]
    ),
    "nested": spaces.Dict(
        {
            "arm": spaces.Tuple((spaces.Dict({"joint": _small()}), spaces.Tuple((_small(),)))),
            "none": spaces.Dict({"less": spaces.Dict({"least": spaces.Tuple(())})}),
            "word": spaces.Text(4),
        }
    ),
    "one of": spaces.OneOf((spaces.Discrete(3), _small(), spaces.Text(4))),
    "sequence": spaces.Sequence(_small()),
    "sequence of discrete": spaces.Sequence(spaces.Discrete(3, start=1)),
    "sequence of integers without bounds": spaces.Sequence(spaces.Box(0, np.inf, (2,), np.int32)),
    "stacked sequence": spaces.Sequence(spaces.Box(0, 1, (2,), np.float32), stack=True),
    "sequence of dicts": spaces.Sequence(spaces.Dict({"a": spaces.Discrete(3), "b": _small()})),
    "graph": spaces.Graph(_small(), spaces.Discrete(3)),
    "graph without edges": spaces.Graph(spaces.Discrete(3), None),
}
"""Each kind of space."""

if "dtype" in inspect.signature(spaces.Discrete).parameters:  # Gymnasium 1.3.
    SPACES |= {
        "discrete of uint8": spaces.Discrete(3, dtype=np.uint8),
        "discrete of uint64 with start": spaces.Discrete(3, start=5, dtype=np.uint64),
        "dict of discrete of uint32": spaces.Dict({"a": spaces.Discrete(3, dtype=np.uint32)}),
    }


class Mirror(gymnasium.Env[Any, Any]):
    """Observes the action that was taken; its info is everything that it was told.

    Args:
      kind: a key of `SPACES`, or "mission", "arms" or "half".
      render_mode: "rgb_array", "ansi" or "rgb_array_list".
      length: how many steps an episode has.
      ends: how it ends: "terminated", "truncated" or "both".
      has_odd_infos: whether the info has a NaN, texts and more that check_env cannot compare.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  # as in Gymnasium
        "render_modes": ["human", "rgb_array", "ansi", "rgb_array_list"],
        "render_fps": 12.5,
        "owner": ("me", 1),
    }
    reward_range = (-1.5, float("inf"))

    def __init__(
        self,
        kind: str = "discrete",
        render_mode: str | None = None,
        length: int = 3,
        ends: str = "terminated",
        has_odd_infos: bool = True,
    ):
        own = {"mission": Mission(), "arms": Arms(), "half": Half(3)}
        space = own.get(kind) or SPACES[kind]
        self.action_space, self.observation_space = copy.deepcopy(space), copy.deepcopy(space)
        self.render_mode = render_mode
        self._length, self._ends = length, ends
        self._has_odd_infos = has_odd_infos
        self._step = 0

    _odd_infos = {  # noqa: RUF012
        "nan": float("nan"),
        "nested": {"tuple": (1, [2.5, None], "text"), 3: -np.inf, "$": True},
        "words": np.array(["a", "bc"]),
        "bytes": b"\x00\xff",
        "empty": np.zeros((0, 2)),
    }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._step = 0
        info = {"seed": seed, "options": options, "drawn": self.np_random.random()}
        return self.observation_space.sample(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        is_last = self._step == self._length
        info: dict[str, Any] = {
            "mask": np.array([0, 1, self._step], np.int8),
            "scalar": np.float32(self._step / 3),
            "whole": np.int64(self._step),
            "flag": np.bool_(True),
            "long": np.longlong(self._step),
        }
        if self._has_odd_infos:
            info |= self._odd_infos
        return (
            action,
            self._step * 0.1,
            is_last and self._ends != "truncated",
            is_last and self._ends != "terminated",
            info,
        )

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"step {self._step}"
        frame = np.full((2, 3, 3), self._step, np.uint8)
        return [frame, frame] if self.render_mode == "rgb_array_list" else frame
