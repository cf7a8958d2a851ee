"""Observations: values that do not fit their spaces, odd ones that do, spaces of every kind."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.travelling.environments.habits import Habit, Refused
from tests.travelling.environments.usual import Observing, Usual

_BYTES = spaces.Box(0, 255, (2,), np.uint8)
_INTEGERS = spaces.Box(-9, 9, (2,), np.int32)
_FLOATS = spaces.Box(-9, 9, (2,), np.float32)
_NESTED = spaces.Dict({"near": _FLOATS, "far": spaces.Tuple((_BYTES, spaces.Discrete(3)))})

_COUNTS = np.array([[3, 4], [5, 6]])

_BY_INTEGER: Any = [(2, _BYTES), (1, _FLOATS)]

_POSITIONS = {"reset": [0], "step": [1, 2], "end": [3]}


def _unfit(
    space: spaces.Space[Any], value: Any, when: str, *texts: str, place: str = "observation"
) -> Habit:
    refused = Refused(("violates its own s", f"'{place}'"), texts)
    return Habit(
        functools.partial(Observing, space=space, value=value, when=when),
        dict.fromkeys(_POSITIONS[when], refused),
        {"reset": "RRsssrs", "step": "RsssrsRs", "end": "RsssRsRs"}[when],
    )


def _fit(space: spaces.Space[Any], value: Any) -> Habit:
    return Habit(functools.partial(Observing, space=space, value=value, when="always"))


def _of(space: spaces.Space[Any]) -> Habit:
    return Habit(functools.partial(Observing, space=space))


class Reusing(Usual):
    """Observes one array, which it changes."""

    def __init__(self, row: int):
        super().__init__(row)
        self._seen = np.zeros(2)

    def observe(self) -> Any:
        self._seen[:] = self.count, -self.count
        return self._seen


class Disordered(Usual):
    """Observes a Dict in another order than that of its space."""

    observation_space = spaces.Dict(
        {"z": spaces.Discrete(999), "a": spaces.Dict({"y": _FLOATS, "b": _BYTES})}
    )

    def observe(self) -> Any:
        inner = {"b": np.full(2, self.steps, np.uint8), "y": np.full(2, self.row, np.float32)}
        return {"a": inner, "z": self.count + 100}


class Echoing(Usual):
    """Tells its action, its type and what it was reset with."""

    def __init__(self, row: int, space: spaces.Space[Any]):
        super().__init__(row)
        self.action_space = space

    def inform(self) -> Any:
        if self.steps == 0:
            return {"given": [self.was_given]}
        return {"action": repr(self.action), "kind": str(type(self.action))}


class Limited(Usual):
    """Its spec has a time limit, and its observations are of Gymnasium's own wrappers."""

    def __new__(cls, row: int) -> Any:
        return gymnasium.wrappers.TimeLimit(Usual(row), max_episode_steps=2)


HABITS: dict[str, Habit] = {
    "no habit": Habit(Usual),
    # Values that do not fit.
    "300 in a byte": _unfit(_BYTES, np.array([0, 300]), "step", "300, which uint8 cannot hold"),
    "-1 in a byte at first": _unfit(_BYTES, np.array([-1, 3], np.int8), "reset", "-1, which uint8"),
    "-1 in a byte at the end": _unfit(_BYTES, [-1, 3], "end", "-1, which uint8 cannot hold"),
    "what follows an end that did not fit": _unfit(_BYTES, [-1, 3], "end")._replace(
        calls="Rsssr"
    ),
    "a fraction in an integer": _unfit(_INTEGERS, [0.0, 1.7], "end", "1.7, which is not an int"),
    "NaN in an integer": _unfit(_INTEGERS, [np.nan, 1], "step", "nan, which int32 cannot hold"),
    "1e300 in a float32": _unfit(_FLOATS, [0, 1e300], "step", "1e+300, which float32 cannot"),
    "complex": _unfit(_FLOATS, np.array([0, 1 + 2j]), "step", "NumPy dtype complex128"),
    "a text for numbers": _unfit(_FLOATS, ["0.5", "1"], "reset", "expected float32, got strings"),
    "one number for all": _unfit(_FLOATS, np.zeros(1, np.float32), "step", "shape [1]"),
    "just beyond float32": _unfit(_FLOATS, np.array([-3.5e38, 0]), "end", "-3.5e+38, which"),
    "a number": _unfit(_FLOATS, 1.0, "reset", "shape []"),
    "two numbers for a Discrete": _unfit(
        spaces.Discrete(3), np.zeros(2, np.int64), "end", "shape [2]"
    ),
    "a list for a Discrete": _unfit(spaces.Discrete(3), [1], "step", "shape [1]"),
    "no text": _unfit(spaces.Text(9), 5, "end", "expected a str, got an int"),
    "a row too many": _unfit(_FLOATS, np.zeros((2, 2), np.float32), "end", "shape [2, 2]"),
    "None": _unfit(_FLOATS, None, "step", "None"),
    "a masked observation": _unfit(
        _FLOATS, np.ma.array([0.0, 1.0], mask=[False, True]), "step", "masked elements"
    ),
    "a key that is missing": _unfit(
        _NESTED, {"near": np.zeros(2, np.float32)}, "step", "expected a mapping with keys", "near"
    ),
    "a key too many": _unfit(
        spaces.Dict({"x": _BYTES}), {"x": np.zeros(2, np.uint8), "y": 1}, "step", "'y'"
    ),
    "a leaf that does not fit": _unfit(
        _NESTED, {"near": np.zeros(2, np.float32), "far": ([0, 300], 1)}, "end",
        "300, which uint8 cannot hold", place="observation.far.0",
    ),
    "a list for a Tuple of another length": _unfit(
        spaces.Tuple((_BYTES,)), [], "step", "expected a tuple of 1 values"
    ),
    # Odd values that fit.
    "lists": _fit(_BYTES, [1, 255]),
    "wider integers": _fit(_BYTES, np.array([0, 200], np.int64)),
    "whole floats": _fit(_INTEGERS, np.array([-3.0, 4.0])),
    "float64 that rounds": _fit(_FLOATS, np.array([0.1, 0.2])),
    "no numbers": _fit(_FLOATS, np.array([np.nan, -np.inf], np.float32)),
    "big-endian": _fit(_INTEGERS, np.array([1, 2], ">i4")),
    "strided": _fit(_INTEGERS, np.arange(8, dtype=np.int32)[::-4]),
    "bools": _fit(_BYTES, np.array([True, False])),
    "out of bounds": _fit(_INTEGERS, np.array([100, -100], np.int32)),
    "an array for a Discrete": _fit(spaces.Discrete(3), np.array(2, np.int8)),
    "one array": Habit(Reusing),
    "another order": Habit(Disordered),
    # Spaces.
    "float16": _fit(spaces.Box(-9, 9, (2,), np.float16), np.array([0.5, -1], np.float16)),
    "int16 and uint16": _of(
        spaces.Tuple((spaces.Box(-9, 9, (2,), np.int16), spaces.Box(0, 9, (2,), np.uint16)))
    ),
    "integers without bounds": _of(spaces.Box(-np.inf, np.inf, (3,), np.int64)),
    "one bound": _of(spaces.Box(np.array([0, -np.inf]), np.inf, dtype=np.float64)),
    "no elements": _of(spaces.Dict({"none": spaces.Box(0, 1, (0, 3)), "some": _BYTES})),
    "a scalar Box": _of(spaces.Box(-1, 1, (), np.float32)),
    "bool": _fit(spaces.Box(0, 1, (2,), np.bool_), np.array([True, False])),
    "Discretes": _of(
        spaces.Dict(
            {
                "negative": spaces.Discrete(5, start=-7),
                "unsigned": spaces.Discrete(5, dtype=np.uint8),
                "many": spaces.MultiDiscrete(_COUNTS, start=_COUNTS - 4),
                "bits": spaces.MultiBinary((2, 2)),
            }
        )
    ),
    "keys": _of(spaces.Dict({"a.b": _BYTES, "": _BYTES, "reward": _FLOATS, "100%": _BYTES})),
    "keys that are integers": _of(spaces.Dict(_BY_INTEGER)),
    "Text": _of(spaces.Text(9, min_length=0, charset="aéß☃ \n")),
    "a Sequence": _of(spaces.Sequence(_FLOATS)),
    "a stacked Sequence": _of(spaces.Sequence(spaces.Discrete(4), stack=True)),
    "a Sequence of Dicts": _of(spaces.Sequence(spaces.Dict({"x": _BYTES, "t": spaces.Text(3)}))),
    "a Graph": _of(spaces.Graph(_FLOATS, spaces.Discrete(3))),
    "OneOf": _of(spaces.OneOf((_FLOATS, spaces.Discrete(3), spaces.Text(4)))),
    "a time limit": Habit(Limited, calls="RssrsRs"),
    # Actions.
    "tells a Discrete": Habit(functools.partial(Echoing, space=spaces.Discrete(5, start=-2))),
    "tells a nested action": Habit(
        functools.partial(
            Echoing,
            space=spaces.Dict(
                {
                    "z": spaces.Tuple((spaces.Discrete(3), _FLOATS)),
                    "a": spaces.Dict({"bits": spaces.MultiBinary(2), "t": spaces.Text(3)}),
                    "m": spaces.MultiDiscrete([3, 4]),
                    "u": spaces.Discrete(4, dtype=np.uint8),
                }
            ),
        )
    ),
}  # fmt: skip
"""By name."""
