"""Values that do not fit: rows refuse what a single environment refuses, with the same error."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.adaptors.gymnasium.ways import WAYS, failure, playing

_BYTES = spaces.Box(0, 255, (2,), np.uint8)
_INTEGERS = spaces.Box(-9, 9, (2,), np.int32)
_FLOATS = spaces.Box(-9, 9, (2,), np.float32)

_LENGTH = 2
"""The step that ends an episode, and begins the next in the mode SAME_STEP."""


class Odd(gymnasium.Env[Any, Any]):
    """Returns an odd value at one place, and zeros elsewhere.

    Args:
      space: of the observations.
      value: the value.
      at: "reset", "step", "end", or "reward".
    """

    def __init__(self, space: spaces.Space[Any], value: Any, at: str):
        self.action_space = spaces.Discrete(2)
        self.observation_space = space
        self._value = value
        self._at = at
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._steps = 0
        return self._observed("reset"), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        self._steps += 1
        is_last = self._steps == _LENGTH
        observation = self._observed("end" if is_last else "step")
        return observation, self._value if self._at == "reward" else 0.0, is_last, False, {}

    def _observed(self, at: str) -> Any:
        return self._value if at == self._at else _zeros(self.observation_space)


def _zeros(space: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _zeros(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_zeros, space.spaces))
    if isinstance(space, spaces.Text):
        return "zero"
    return np.zeros(space.shape, space.dtype)


class Misfit(NamedTuple):
    """A value that no element of a space can hold, and what is said of it."""

    space: spaces.Space[Any]
    value: Any
    text: str


def _nested(misfit: Misfit) -> Misfit:
    """The same value as a leaf of a Dict."""
    space = spaces.Dict({"near": _FLOATS, "far": spaces.Tuple((misfit.space,))})
    return Misfit(space, {"near": np.zeros(2, np.float32), "far": (misfit.value,)}, misfit.text)


MISFITS = {
    "too large": Misfit(_BYTES, np.array([0, 300]), "300, which uint8 cannot hold (0 to 255)"),
    "negative": Misfit(_BYTES, np.array([-1, 30], np.int8), "-1, which uint8 cannot hold"),
    "a fraction": Misfit(_INTEGERS, np.array([0.0, 1.7]), "1.7, which is not an integer"),
    "NaN": Misfit(_INTEGERS, np.array([np.nan, 1]), "nan, which int32 cannot hold"),
    "beyond float32": Misfit(_FLOATS, np.array([0, 1e300]), "1e+300, which float32 cannot hold"),
    "just beyond": Misfit(_FLOATS, np.array([-3.5e38, 0]), "-3.5e+38, which float32 cannot hold"),
    "complex": Misfit(_FLOATS, np.array([0, 1 + 2j]), "no type for NumPy dtype complex128"),
    "texts": Misfit(_FLOATS, np.array(["0.5", "1"]), "expected float32, got strings"),
    "a number for all": Misfit(_FLOATS, 1.0, "shape []"),
    "one for all": Misfit(_FLOATS, np.zeros(1, np.float32), "shape [1]"),
    "a row too many": Misfit(_FLOATS, np.zeros((2, 2), np.float32), "shape [2, 2]"),
    "masked": Misfit(_FLOATS, np.ma.array([0.0, 1.0], mask=[False, True]), "masked elements"),
    "None": Misfit(_FLOATS, None, "None is of type NoneType"),
    "two numbers as one": Misfit(spaces.Discrete(3), np.zeros(2, np.int64), "shape [2]"),
    "one in a list": Misfit(spaces.Discrete(3), [1], "shape [1]"),
    "no text": Misfit(spaces.Text(9), 5, "expected a str, got an int"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MISFITS)
def test_observations_that_do_not_fit(name: str, way: str) -> None:
    for space, value, text in (MISFITS[name], _nested(MISFITS[name])):
        for at in ("reset", "step", "end"):
            with playing(way, functools.partial(Odd, space, value, at)) as env:
                if at == "reset":
                    found = failure(env.reset)
                else:
                    env.reset()
                    for _ in range({"step": 1, "end": _LENGTH}[at] - 1):
                        env.step()
                    found = failure(env.step)
            assert "the environment violates its own s" in found, (at, found)
            assert "observation" in found, (at, found)
            assert text in found, (at, found)


class NoNumber:
    """An object that is no number."""

    def __repr__(self) -> str:
        return "no number"


REWARDS: dict[str, tuple[Any, str]] = {
    "None": (None, "got None"),
    "a text": ("0.5", "got a str"),
    "complex": (1 + 2j, "got a complex"),
    "complex of NumPy": (np.complex64(1j), "got a complex64"),
    "two numbers": (np.zeros(2), "got an array float64 [2]"),
    "one number": (np.ones(1), "got an array float64 [1]"),
    "a list": ([1.0], "got a list"),
    "a duration": (np.timedelta64(3, "s"), "got a timedelta64"),
    "masked": (np.ma.masked, "got a masked value"),
    "an object": (NoNumber(), "got a NoNumber"),
    "too large": (10**400, "too large"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REWARDS)
def test_rewards_that_are_no_numbers(name: str, way: str) -> None:
    value, text = REWARDS[name]
    with playing(way, functools.partial(Odd, _FLOATS, value, "reward")) as env:
        env.reset()
        for _ in range(_LENGTH):  # Also that of the step that ends an episode.
            found = failure(env.step)
            assert "step of Odd returned a reward that is no number" in found
            assert text in found, found


class Fitting(NamedTuple):
    """A value that is taken, and what a client sees of it."""

    space: spaces.Space[Any]
    value: Any
    seen: Any


FITTING = {
    "a list": Fitting(_BYTES, [1, 255], [1, 255]),
    "wide integers": Fitting(_BYTES, np.array([0, 200], np.int64), [0, 200]),
    "whole floats": Fitting(_INTEGERS, np.array([-3.0, 4.0]), [-3, 4]),
    "doubles": Fitting(_FLOATS, np.array([0.1, 0.2]), np.array([0.1, 0.2], np.float32).tolist()),
    "bools": Fitting(_BYTES, np.array([True, False]), [1, 0]),
    "large": Fitting(
        _FLOATS, np.array([3e38, -3e38]), np.array([3e38, -3e38], np.float32).tolist()
    ),
    "not a number": Fitting(_FLOATS, np.array([np.nan, np.inf]), [np.nan, np.inf]),
    "big-endian": Fitting(_INTEGERS, np.array([1, 2], ">i4"), [1, 2]),
    "out of bounds": Fitting(_INTEGERS, np.array([100, -100], np.int32), [100, -100]),
    "a narrow integer": Fitting(spaces.Discrete(3), np.int8(2), 2),
    "an array of one": Fitting(spaces.Discrete(3), np.array(2), 2),
    "int16": Fitting(spaces.Box(-9, 9, (2,), np.int16), np.array([-7, 7]), [-7, 7]),
    "uint16": Fitting(spaces.Box(0, 9, (2,), np.uint16), np.array([0, 7]), [0, 7]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FITTING)
def test_observations_that_fit_are_the_same(name: str, way: str) -> None:
    space, value, seen = FITTING[name]
    for at in ("reset", "step", "end"):
        with playing(way, functools.partial(Odd, space, value, at)) as env:
            result = env.reset()
            for _ in range({"reset": 0, "step": 1, "end": _LENGTH}[at]):
                result = env.step()
            found = result.observation
            if at == "end" and way == "batch, SAME_STEP":
                found = result.info["final_obs"]
            np.testing.assert_array_equal(found, seen)
            assert np.asarray(found).dtype.kind == np.dtype(space.dtype).kind


@pytest.mark.parametrize("way", WAYS)
def test_rewards_that_are_numbers_are_the_same(way: str) -> None:
    for value in (1, True, np.float32(0.1), np.array(2.5), np.int8(-3), 1 << 60, np.bool_(True)):
        with playing(way, functools.partial(Odd, _FLOATS, value, "reward")) as env:
            env.reset()
            assert env.step().reward == float(value)
