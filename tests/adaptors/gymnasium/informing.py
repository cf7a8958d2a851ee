"""Gymnasium environments whose infos are of every kind, and other ones in each row."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ROWS = 3

ABSENT = object()


def _objects(*items: Any) -> Any:
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array


_SCALARS = [
    np.dtype(code).type(1) for code in np.typecodes["All"] if np.dtype(code).kind in "biufc"
]

# What the key "it" is in each row.
_VALUES: dict[str, tuple[Any, Any, Any]] = {
    "an integer and floats": (1, 1.5, -0.0),
    "a bool and integers": (True, 7, 0),
    "nothing": (3, None, None),
    "not in each row": (ABSENT, 3, ABSENT),
    "arrays of different length": (np.zeros(2), np.arange(3), np.zeros((0, 2))),
    "arrays without dimensions": (np.array(1), np.array(2.5), np.array(True)),
    "a dict beside nothing": ({"a": 1}, None, {}),
    "a dict beside a number": ({"a": {"b": 1}}, 4, {"a": {"b": 1.5}}),
    "nested dicts of other keys": ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": {"e": 4}}),
    "large integers": (2**63, -(2**70), 10**30),
    "a large integer beside a small one": (1, 2**63, 2**64),
    "texts": ("a", "bcd", ""),
    "a text beside a number": ("a", 1, None),
    "surrogates and other characters": ("\ud800", "\u00e4\u20ac\U0001f600", "\0"),
    "lists": ([1, [2, "x"]], [], [None]),
    "tuples": ((1, 2), (1, (2.5,)), ()),
    "a list beside a tuple": ([1, 2], (1, 2), np.array([1, 2])),
    "bytes": (b"\x00\xff", b"", np.bytes_(b"a")),
    "no numbers": (float("nan"), float("inf"), -float("inf")),
    "complex numbers": (1 + 2j, np.complex64(1j), np.array([1j])),
    "scalars of numpy": (np.float32(0.1), np.int8(1), np.bool_(True)),
    "an integer of numpy beside one": (np.int64(1), 1, np.uint64(2**64 - 1)),
    "texts of numpy": (np.str_("x"), np.array(["a", "bc"]), np.array(["a"], "<U5")),
    "all scalars": (_SCALARS[::3], _SCALARS[1::3], _SCALARS[2::3]),
    "dates": (np.datetime64("2020-01-01"), np.timedelta64(3, "s"), np.array(["2020"], "M8[D]")),
    "arrays of every dtype": (
        [np.zeros((2, 1), each.dtype) for each in _SCALARS],
        np.array([b"a", b"bc"]),
        np.array([1, 2], ">i4"),
    ),
    "arrays of objects": (
        _objects([1, 2], [3, 4]),
        _objects(np.zeros(2), None),
        _objects("a", {"b": 1}),
    ),
    "arrays of texts as objects": (_objects("a", "b"), _objects("a"), _objects()),
    "masked arrays": (
        np.ma.MaskedArray([1, 2], [False, True]),
        np.ma.masked,
        np.ma.MaskedArray([1.5], [True], fill_value=3.0),
    ),
    "keys that are no texts": ({1: 2, (3, "x"): None}, {None: 1}, {"$": 1, "a": 2}),
    "one shape and one dtype": (np.array([1, 2]), np.array([3, 4]), np.array([5, 6])),
    "one type": (1, 2, 3),
}

# The whole info of each row.
_WHOLE: dict[str, tuple[Any, Any, Any]] = {
    "keys with underscores": ({"_it": 1}, {"_it": 2, "it": 3}, {"it": 4, "_it": [True], "__it": 5}),
    "keys of masks": ({"a": 1, "_a": True}, {"_a": False}, {"a": 1.5}),
    "keys of Gymnasium": ({"final_obs": 1}, {"final_info": 2, "final_obs": {}}, {"_final_obs": 3}),
    "keys of Stable-Baselines3": (
        {"terminal_observation": 1, "TimeLimit.truncated": "x"},
        {"TimeLimit.truncated": None, "episode": {"r": 1.0, "l": 3, "t": 0.1}},
        {"is_success": np.bool_(True)},
    ),
    "keys of this package": (
        {"rows": 1, "info": {"info": 2}, "truncated": 3},
        {"restarted": False, "discount": 1},
        {"gymnasium": "", "observation": 2, "0": 1},
    ),
    "keys in another order": ({"b": 1, "a": 2}, {"a": 1, "b": 2}, {"c": 0, "b": 1, "a": 2}),
    "empty": ({}, {"a": 1}, {}),
    "all empty": ({}, {}, {}),
    "names with periods and spaces": ({"a.b": 1, "a": {"b": 2}}, {" ": 1}, {"": 2}),
}

KINDS = [*_VALUES, *_WHOLE]


class Unshowable:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("nobody may see this")


# Infos that cannot travel, of the second row; the last is refused, whether it travels or not.
_HOPELESS = {
    "an object that cannot be shown": {"it": Unshowable()},
    "an integer of too many digits": {"it": 10**5000},
    "no dict": [1],
}

HOPELESS = [kind for kind in _HOPELESS if kind != "no dict"]


def _info(kind: str, row: int) -> dict[str, Any]:
    if kind in _HOPELESS:
        return _HOPELESS[kind] if row == 1 else {}  # type: ignore[return-value]  # one is no dict
    if kind in _WHOLE:
        return dict(_WHOLE[kind][row])
    value = _VALUES[kind][row]
    return {"row": row, **({} if value is ABSENT else {"it": value})}


class Informing(gymnasium.Env[Any, Any]):
    """Its infos are of one of `KINDS`; an episode of row i has i + 2 steps.

    The option `kind` of a reset has it go on with another kind.

    Args:
      row: which row this is.
      kind: the kind at first.
      ends: how episodes end: "terminated", "truncated" or "both".
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as in Gymnasium

    def __init__(self, row: int = 0, kind: str = "one type", ends: str = "terminated"):
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-99, 99, (2,), np.float32)
        self.render_mode = None
        self._row, self._kind, self._ends = int(row), kind, ends
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        self._kind = (options or {}).get("kind", self._kind)
        info = _info(self._kind, (self._row + 1) % ROWS)
        if seed is not None:
            info |= {"seed": seed, "options": options}
        return self._observation(), info

    def step(self, action: Any) -> Any:
        self._steps += 1
        is_last = self._steps == self._row + 2
        return (
            self._observation(),
            self._steps / 2,
            is_last and self._ends != "truncated",
            is_last and self._ends != "terminated",
            _info(self._kind, (self._row + self._steps) % ROWS),
        )

    def told(self) -> Any:
        """What an `env_method` returns."""
        return _info(self._kind, self._row).get("it")

    def same_told(self) -> Any:
        """The same of all rows."""
        return _info(self._kind, 0).get("it")

    def _observation(self) -> Any:
        return np.array([self._row, self._steps], np.float32)


def informing(**settings: Any) -> Informing:
    """The factory of a server."""
    return Informing(**settings)


class Waiting(Informing):
    """Waits for something in each step, so that its rows step in threads."""

    def step(self, action: Any) -> Any:
        time.sleep(0.002)  # As an engine in another process takes.
        return super().step(action)


def waiting(**settings: Any) -> Informing:
    """The factory of a server."""
    return Waiting(**settings)


def identical(first: Any, second: Any) -> bool:
    """Whether two values are the same: all types, dtypes, shapes, NaN and the order of keys."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(identical(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(identical, first, second))
    if first is np.ma.masked:
        return second is first
    if isinstance(first, np.ma.MaskedArray):
        return (
            identical(np.asarray(first.data), np.asarray(second.data))
            and identical(np.asarray(first.mask), np.asarray(second.mask))
            and identical(first.fill_value, second.fill_value)
        )
    if isinstance(first, np.ndarray | np.generic):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        if first.dtype == object:
            return all(map(identical, first.ravel().tolist(), second.ravel().tolist()))
        if first.dtype.kind in "fc" and first.dtype.itemsize > 8:
            # A long double has unused bytes.
            return bool(repr(first.tolist()) == repr(second.tolist()))
        return bool(first.tobytes() == second.tobytes())
    # NaN, and the sign of 0.
    return bool(repr(first) == repr(second))


def rows_alone(kind: str, ends: str = "terminated") -> list[Informing]:
    """The environments of the rows, in this process."""
    return [Informing(row, kind, ends) for row in range(ROWS)]


def played(kind: str, steps: int = 6, ends: str = "terminated", **reset: Any) -> list[Any]:
    """The infos of resets and steps of each row, as Stable-Baselines3 has them.

    Args:
      kind: one of `KINDS`.
      steps: how many steps.
      ends: how episodes end.
      **reset: the seed and options of the first reset.

    Returns:
      The infos of the first reset, and of each step the infos and those of the last resets.
    """
    environments = rows_alone(kind, ends)
    firsts = [each.reset(**reset)[1] for each in environments]
    found: list[Any] = [list(firsts)]
    for _ in range(steps):
        infos = []
        for row, each in enumerate(environments):
            observation, _, terminated, truncated, info = each.step(0)
            info["TimeLimit.truncated"] = truncated and not terminated
            if terminated or truncated:
                info["terminal_observation"] = observation
                _, firsts[row] = each.reset()
            infos.append(info)
        found.append((infos, list(firsts)))
    return found
