"""Infos, rewards and flags of every kind."""

from __future__ import annotations

import collections
import datetime
import enum
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import dm_env
import numpy as np

from tests.travelling.environments.usual import Habit, Refused, Usual


class Informing(Usual):
    """Its infos are made by a function."""

    def __init__(self, row: int, inform: Callable[[Usual], Any]):
        super().__init__(row)
        self._inform = inform

    def inform(self) -> Any:
        return self._inform(self)


class Colour(enum.Enum):
    """Something that JSON has not."""

    RED = 1


class Shade(str, enum.Enum):
    """Something that JSON has below its class."""

    DARK = "dark"


class Unknown:
    """An object that only its own program knows."""

    def __repr__(self) -> str:
        return "<something>"


def _nested(levels: int) -> Any:
    return {"level": _nested(levels - 1)} if levels else "deep"


_MASKED = np.ma.array([[1.5, 2.5], [3.5, 4.5]], mask=[[True, False], [False, True]])


class Reusing(Usual):
    """Keeps one info, and all that is in it."""

    def __init__(self, row: int):
        super().__init__(row)
        self._array, self._list, self._texts = np.zeros(2), [0], np.array(["", "x"], object)
        self.kept: dict[str, Any] = {
            "array": self._array,
            "action_mask": np.zeros(3, np.int8),
            "list": self._list,
            "texts": self._texts,
            "within": (self._list, {"array": self._array}),
        }

    def inform(self) -> Any:
        self._array[:] = self._list[0] = self.kept["number"] = self.count
        self.kept["action_mask"][:] = self.steps
        self._texts[0] = f"text {self.count}"
        return self.kept


class Sharing(Reusing):
    """All environments of the process have one info."""

    common: ClassVar[dict[str, Any]] = {}

    def inform(self) -> Any:
        self.common.update(super().inform())
        return self.common


class Rewarding(Usual):
    """Its rewards are a value."""

    def __init__(self, row: int, value: Any):
        super().__init__(row)
        self._value = value

    def reward(self) -> Any:
        return self._value


class Ending(Usual):
    """Its flags at the end are these, and otherwise these made false."""

    def __init__(self, row: int, terminated: Any, truncated: Any):
        super().__init__(row)
        self._flags = terminated, truncated

    def ends(self) -> tuple[Any, Any]:
        terminated, truncated = self._flags
        is_last = self.steps == 3
        return type(terminated)(terminated and is_last), type(truncated)(truncated and is_last)


def _info(inform: Callable[[Usual], Any]) -> Habit:
    return Habit(functools.partial(Informing, inform=inform))


def _same(value: Any) -> Habit:
    return _info(lambda env: value)


def _by_row(first: Any, second: Any) -> Habit:
    return _info(lambda env: {"odd": (first, second)[env.row]})


def _reward(value: Any, *text: str) -> Habit:
    refused = Refused(("returned a reward that is not a number",), ("step of Rewarding", *text))
    positions = (1, 2, 3, 5, 7) if text else ()
    return Habit(
        functools.partial(Rewarding, value=value),
        dict.fromkeys(positions, refused),
        "RsssRsRs" if text else "RsssrsRs",
    )


INFOS: dict[str, Habit] = {
    "numbers": _info(
        lambda env: {
            "int": env.count, "float": env.count / 8, "bool": env.steps == 1, "large": 1 << 62,
            "np": np.float32(0.1), "small": np.int8(env.steps), "flag": np.bool_(True),
        }
    ),
    "NaN in an info": _same({"nan": float("nan"), "inf": -np.inf, "array": np.array([np.nan, 1])}),
    "texts": _info(lambda env: {"text": f"é{env.count}☃", "none": None, "bytes": b"\0\xff"}),
    "arrays": _info(
        lambda env: {
            "ints": np.arange(3, dtype=np.int16) + env.count, "floats": np.full((2, 2), 0.1),
            "empty": np.zeros((0, 2)), "bools": np.array([True, False]), "0-d": np.array(2.5),
            "texts": np.array(["a", "bcd"]), "order": np.asfortranarray(np.eye(2)),
        }
    ),
    "an action mask": _info(lambda env: {"action_mask": np.array([1, env.steps, 0], np.int8)}),
    "lists and tuples": _info(lambda env: {"list": [env.count, "x", [None]], "tuple": (1, (2.5,))}),
    "dicts": _info(lambda env: {"a": {"b": {"c": env.count}, "t": "x"}, "none": {}}),
    "keys of dicts": _same({"d": {1: "a", (2, 3): "b", None: "c"}, "e": {"$": 1, "a.b": 2}}),
    "keys in order": _same({"z": 1, "a": 2, "m": {"y": 1, "b": 2}}),
    "keys of others": _same({"_x": 1, "x": 2, "seed": 4, "observation": 5}),
    "keys of vector environments": _same({"final_obs": 3, "final_info": {"a": 1}}),
    "complex numbers": _same({"c": 1 + 2j, "a": np.array([1j], np.complex64)}),
    "dates": _same({"at": np.datetime64("2020-02-03"), "for": np.array([3], "m8[s]")}),
    "a masked array": _same({"masked": _MASKED}),
    "objects": _same(
        {"what": Unknown(), "red": Colour.RED, "view": {"x": 1}.keys(), "time": datetime.time(1)}
    ),
    "dates of Python": _same(
        {
            "day": datetime.date(2020, 2, 3), "at": datetime.datetime(2020, 2, 3, 4, 5, 6, 7),
            "for": datetime.timedelta(1, 2, 3),
        }
    ),
    "sets": _same({"set": {1, "x", (2, 3)}, "frozen": frozenset({1.5}), "of": [set(), {None}]}),
    "enums of texts and numbers": _same({"dark": Shade.DARK, "types": [dm_env.StepType.FIRST]}),
    "an array of objects": _same({"mixed": np.array([1, "a", None, [2]], object)}),
    "an OrderedDict": _same({"o": collections.OrderedDict(b=1, a=2)}),
    "integers of 2**63": _same({"large": 1 << 63, "huge": 10**30}),
    "deep": _same({"deep": _nested(12)}),
    "1 beside 1.5": _by_row(1, 1.5),
    "True beside 7": _by_row(True, 7),
    "3 beside None": _by_row(3, None),
    "a dict beside None": _by_row({"x": 1}, None),
    "a text beside a number": _by_row("x", 1),
    "arrays of different length": _by_row(np.zeros(2), np.ones(3)),
    "infos of one row": _info(lambda env: {"only": env.count} if env.row else {}),
    "infos of some steps": _info(lambda env: {f"step {env.steps}": env.count}),
    "one info": Habit(Reusing),
    "one info for all": Habit(Sharing),
}  # fmt: skip
"""Those that surprise by their infos, by name."""

HABITS: dict[str, Habit] = {
    **INFOS,
    # Rewards.
    "an int": _reward(3),
    "True": _reward(True),
    "float32": _reward(np.float32(0.1)),
    "an array without dimensions": _reward(np.array(2.5)),
    "NaN as a reward": _reward(float("nan")),
    "an endless reward": _reward(-np.inf),
    "a large integer": _reward(1 << 60),
    "no reward": _reward(None, "got None"),
    "a text as a reward": _reward("0.5", "got a str"),
    "a complex reward": _reward(1 + 2j, "got a complex"),
    "a reward in an array": _reward(np.ones(1), "got an array float64 [1]"),
    "two numbers as a reward": _reward(np.zeros(2), "got an array float64 [2]"),
    "a complex reward of NumPy": _reward(np.complex64(1j), "got a complex64"),
    "a duration as a reward": _reward(np.timedelta64(3, "s"), "got a timedelta64"),
    "an object as a reward": _reward(Unknown(), "got an Unknown"),
    "too large a reward": _reward(10**400, "too large"),
    "a masked reward": _reward(np.ma.masked, "got a masked value"),
    "a reward in a list": _reward([1.0], "got a list"),
    # Flags.
    "truncated": Habit(functools.partial(Ending, terminated=False, truncated=True)),
    "both flags": Habit(functools.partial(Ending, terminated=True, truncated=True)),
    "flags of NumPy": Habit(
        functools.partial(Ending, terminated=np.bool_(True), truncated=np.bool_(False))
    ),
    "flags that are integers": Habit(functools.partial(Ending, terminated=1, truncated=0)),
}  # fmt: skip
"""By name."""
