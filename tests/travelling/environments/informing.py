"""Infos, rewards and flags of every kind."""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import zoneinfo
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, ClassVar

import dm_env
import numpy as np

from tests.travelling.environments.habits import Habit, Refused
from tests.travelling.environments.usual import Usual


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


class Bits(enum.IntFlag):
    """Numbers that are more than one name."""

    A = 1
    B = 2


class Long(enum.IntEnum):
    """A number of more than 64 bits."""

    MANY = 10**20


class Rate(float, enum.Enum):
    """A number with a fraction."""

    SLOW = 0.5


class Name(str):
    """Its `str` and `repr` are others than its text."""

    def __str__(self) -> str:
        return "a name"

    def __repr__(self) -> str:
        return "<a name>"


class Turn(complex):
    """A complex number of a class of its own."""


class Key(bytes):
    """Bytes of a class of their own."""


class HashableList(list[int]):
    """Has no hash once it is a list of this package."""

    def __hash__(self) -> int:  # type: ignore[override]
        return 1


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


def _by_rows(first: dict[str, Any], second: dict[str, Any]) -> Habit:
    return _info(lambda env: dict((first, second)[env.row]))


def _reward(value: Any, *text: str) -> Habit:
    refused = Refused(("returned a reward that is not a number",), ("step of Rewarding", *text))
    positions = (1, 2, 3, 5, 7) if text else ()
    return Habit(
        functools.partial(Rewarding, value=value),
        dict.fromkeys(positions, refused),
        "RsssRsRs" if text else "RsssrsRs",
    )


COMPLEX: dict[str, Any] = {
    "c": 1 + 2j, "inf": complex("inf"), "scalar": np.complex64(1 + 2j), "a": np.array([1j], "c8"),
    "none": np.zeros((0, 2), "c16"), "0-d": np.array(1j), "order": np.array([1 + 2j, 3], ">c8"),
}  # fmt: skip

DATES: dict[str, Any] = {
    "at": np.datetime64("2020-02-03"), "for": np.array([3], "m8[s]"),
    "ns": np.datetime64("2020-01-01T10:20:30.123456789"), "never": np.datetime64("NaT", "s"),
    "25 s": np.array("2020-01-01T00", "M8[25s]")[()],
    "days": np.array(["2020-01-01", "NaT"], "M8[D]"),
}  # fmt: skip

DATES_OF_PYTHON: dict[str, Any] = {
    "day": datetime.date(2020, 2, 3), "at": datetime.datetime(2020, 2, 3, 4, 5, 6, 7),
    "for": datetime.timedelta(-1, 2, 3), "last": datetime.datetime.max,
    "longest": datetime.timedelta.max,
}  # fmt: skip

MASKED: dict[str, Any] = {
    "masked": _MASKED,
    "with a fill value": np.ma.array([1.5, 2.5], mask=[True, False], fill_value=-7.0),
    "without a mask": np.ma.array([1, 2]), "all masked": np.ma.array([1, 2], mask=True),
    "texts": np.ma.array(["ab", "cd"], mask=[True, False], fill_value="zz"),
    "complex": np.ma.array([1j, 2.0], mask=[True, False]),
}  # fmt: skip

SETS: dict[str, Any] = {
    "set": {1, "x", (2, 3.5), b"y", None, np.int8(4)}, "of sets": {frozenset({5})},
    "frozen": frozenset({1.5, datetime.date(2020, 2, 3)}), "of": [set(), {None}],
}  # fmt: skip

SUBCLASSES: dict[str, Any] = {
    "dark": Shade.DARK, "types": [dm_env.StepType.FIRST, (Shade.DARK, Rate.SLOW, Turn(1j))],
    "name": Name("bob"), "key": Key(b"k"), "set": {Shade.DARK},
}  # fmt: skip

KEPT_ALONE: dict[str, Any] = {
    "bits": Bits.A | Bits.B, "slow": Rate.SLOW, "long": Long.MANY, "turn": Turn(1j),
    "keys": {dm_env.StepType.MID: Shade.DARK, Name("n"): 2},
    "of": np.array([Shade.DARK, Long.MANY], object),
}  # fmt: skip
"""Subclasses that Gymnasium puts into arrays of objects, and the plain numbers in others."""

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
    "complex numbers": _same(COMPLEX),
    "dates": _same(DATES),
    "masked arrays": _same(MASKED),
    "arrays of every dtype": _same({
        code: np.zeros((2, 1), code) for code in "?bBhHiIqQefdgFD"
    }),
    "long doubles and bytes": _same({
        "long": np.longdouble(1.5), "longs": np.array([1.5, 2.5], np.longdouble),
        "half": np.float16(1.5), "bytes": np.array([b"ab", b"c\x00d"]),
        "order": np.array([1, 2], ">i4"),
    }),
    "objects": _same({
        "what": Unknown(), "red": Colour.RED, "view": {"x": 1}.keys(), "time": datetime.time(1),
        "class": dict, "path": PurePosixPath("/x"), "set": {HashableList([1])},
        "zone": datetime.datetime(2020, 2, 3, tzinfo=zoneinfo.ZoneInfo("UTC")),
    }),
    "dates of Python": _same(DATES_OF_PYTHON),
    "sets": _same(SETS),
    "subclasses of texts": _same(SUBCLASSES),
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

OWN: dict[str, Habit] = {
    "masked": _same({"it": np.ma.masked}),
    "subclasses of numbers": _same(KEPT_ALONE),
    "records": _same({"record": np.array([(1, 2)], "i4,i4"), "void": np.void(b"ab")}),
    "surrogates": _by_row("\0", "\ud800\u20ac\U0001f600"),
    "a dict beside a number": _by_row(4, {"a": {"b": 1}}),
    "other keys beside": _by_row({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}),
    "a list beside a tuple": _by_row([1, 2], (1, 2)),
    "0-d beside 0-d": _by_row(np.array(1), np.array(2.5)),
    "2**64 beside 1": _by_row(1, 1 << 64),
    "keys with underscores": _by_rows({"_it": 1}, {"_it": [True], "it": 3, "__it": 5}),
    "keys of Gymnasium": _by_rows({"final_obs": 1}, {"final_info": 2, "_final_obs": 3}),
    "keys of Stable-Baselines3": _by_rows(
        {"episode": {"r": 1.0, "l": 3, "t": 0.1}}, {"is_success": np.bool_(True)}
    ),
    "keys of this package": _by_rows(
        {"rows": 1, "info": {"info": 2}, "truncated": 3}, {"discount": 1, "gymnasium": "", "0": 1}
    ),
    "names with periods and spaces": _by_rows({"a.b": 1, "a": {"b": 2}}, {" ": 1, "": 2}),
    "another order beside": _by_rows({"b": 1, "a": 2}, {"a": 1, "b": 2}),
}
"""Infos of rows that vector environments of Gymnasium change, or cannot put together."""

HABITS: dict[str, Habit] = {
    **INFOS,
    **OWN,
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
