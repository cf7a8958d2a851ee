"""Environments of dm_env that surprise: step types, discounts, structures, values."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
from dm_env import specs

from tests.travelling.environments.habits import Habit, Refused

FIRST, MID, LAST = dm_env.StepType

Step = tuple[Any, Any, Any]
"""The type of a step, its reward and its discount."""

_SCRIPT: Sequence[Step] = [(FIRST, None, None), (MID, 1.0, 1.0), (MID, 2.0, 1.0), (LAST, 3.0, 0.0)]


ENDLESS: Sequence[Step] = [(FIRST, None, None), (MID, 1.0, 1.0)]
"""A script without an end."""


def array(*shape: int, dtype: Any = np.float64) -> specs.Array:
    return specs.Array(shape, dtype)


class Timed(dm_env.Environment):
    """Its steps are those of a script, and its numbers count.

    Args:
      row: the row.
      script: the steps of an episode.
      spec: of the observations.
      observe: makes an observation of the environment; one that conforms to `spec` without it.
      action: the spec of actions.
      reward: the spec of rewards.
      discount: the spec of discounts.
    """

    def __init__(
        self,
        row: int,
        script: Sequence[Step] = _SCRIPT,
        spec: Any = None,
        observe: Callable[[Any], Any] | None = None,
        action: Any = None,
        reward: Any = None,
        discount: Any = None,
    ):
        self.row, self.episode, self.steps = row, -1, 0
        self.action: Any = None
        self._script = script
        self._spec = array(2) if spec is None else spec
        self._observe = observe
        self._action = specs.DiscreteArray(3) if action is None else action
        self._reward = reward
        if discount is not None:
            self.discount_spec = lambda: discount

    @property
    def count(self) -> int:
        return 100 * self.episode + 10 * self.row + self.steps

    def reset(self) -> dm_env.TimeStep:
        self.episode += 1
        self.steps = 0
        return self._told()

    def step(self, action: Any) -> dm_env.TimeStep:
        self.action = action
        self.steps += 1
        return self._told()

    def action_spec(self) -> Any:
        return self._action

    def observation_spec(self) -> Any:
        return self._spec

    def reward_spec(self) -> Any:
        return super().reward_spec() if self._reward is None else self._reward

    def _told(self) -> dm_env.TimeStep:
        step = self._script[min(self.steps, len(self._script) - 1)]
        observed = filled(self._spec, self.count) if self._observe is None else self._observe(self)
        return dm_env.TimeStep(*step, observed)


def filled(spec: Any, start: int) -> Any:
    """A value for a structure of specs, whose leaves are `start`, `start + 1`, ..."""
    numbers = iter(range(start, start + 100))

    def fill(part: Any) -> Any:
        if isinstance(part, Mapping):
            made: Any = type(part)
            return made((key, fill(each)) for key, each in part.items())
        if isinstance(part, list | tuple) and hasattr(part, "_fields"):
            return type(part)(*map(fill, part))
        if isinstance(part, list | tuple):
            return type(part)(map(fill, part))
        if isinstance(part, specs.StringArray):
            return np.full(part.shape, f"text {next(numbers)}", object)
        return np.full(part.shape, next(numbers)).astype(part.dtype)

    return fill(spec)


class Arms(NamedTuple):
    """Its fields are not in the order of the alphabet."""

    right: Any
    left: Any


@dataclasses.dataclass
class Body:
    """A dataclass."""

    torso: Any
    arms: Any


_BODY = {"torso": array(), "arms": {"right": array(2), "left": array()}}


def _body(env: Timed) -> Body:
    return Body(env.count, Arms(left=1.5, right=[env.steps, 2.0]))


class Reusing(Timed):
    """Observes the same arrays, which it changes."""

    def __init__(self, row: int):
        super().__init__(row, spec={"b": array(2), "a": array(2, dtype=np.int32)})
        self._kept: dict[str, Any] = {"b": np.zeros(2), "a": np.zeros(2, np.int32)}

    def _told(self) -> dm_env.TimeStep:
        for value in self._kept.values():
            value[:] = self.count
        return super()._told()._replace(observation=self._kept)


class Echoing(Timed):
    """Observes its action as text."""

    def __init__(self, row: int, action: Any):
        super().__init__(row, spec={"t": specs.StringArray(())}, action=action)
        self._observe = lambda env: {"t": repr(env.action)}


class Raising(Timed):
    """Raises an error in its first episode: "made", "reset", "step", "end"."""

    def __init__(self, row: int, error: Exception, when: str, rows: tuple[int, ...] = (0, 1)):
        super().__init__(row)
        self._error, self._at = error, {"reset": 0, "step": 1, "end": 3}.get(when)
        self._raises = row in rows
        if when == "made" and self._raises:
            raise error

    def _told(self) -> dm_env.TimeStep:
        if self._raises and self.episode == 0 and self.steps == self._at:
            self._raises = False
            raise self._error
        return super()._told()


class Returning(Timed):
    """Its first step is something else."""

    def __init__(self, row: int, value: Any):
        super().__init__(row)
        self._value = value

    def step(self, action: Any) -> Any:
        timestep = super().step(action)
        return self._value if (self.episode, self.steps) == (0, 1) else timestep


def _timed(**arguments: Any) -> Habit:
    return Habit(functools.partial(Timed, **arguments))


def _script(*steps: Step) -> Habit:
    return _timed(script=list(steps))


def _wrong(script: Sequence[Step], at: int, *parts: str) -> Habit:
    """A script whose step `at` is refused, in each episode."""
    calls = "RRsss" if at == 0 else "RsssrsRs"
    positions = [p for p, s in enumerate(_steps(calls)) if s == at]
    return Habit(
        functools.partial(Timed, script=script), dict.fromkeys(positions, Refused(parts)), calls
    )


def _steps(calls: str) -> list[int]:
    found: list[int] = []
    for call in calls:
        found.append(found[-1] + 1 if call == "s" else 0)
    return found


def _misfit(spec: Any, value: Any, *parts: str) -> Habit:
    """An observation that does not fit, in the first step of the first episode."""

    def observe(env: Timed) -> Any:
        is_odd = (env.episode, env.steps) == (0, 1)
        return value if is_odd else filled(spec, env.count % 100)

    return Habit(functools.partial(Timed, spec=spec, observe=observe), {1: Refused(parts)})


def _raising(error: Exception, when: str, calls: str = "RsssrsRs", **rows: Any) -> Habit:
    return Habit(functools.partial(Raising, error=error, when=when, **rows), calls=calls)


_TORQUE = specs.BoundedArray((2,), np.float32, [-1.0, -2.0], [1.0, 2.0], "torque")

HABITS: dict[str, Habit] = {
    "no habit": _timed(),
    # Steps.
    "types are integers": _script((0, None, None), (1, 1.0, 1.0), (np.int64(1), 2.0, 1.0),
                                  (np.array(2), 3.0, 0.0)),
    "FIRST has a reward and a discount": _script((FIRST, 5.0, 0.0), *_SCRIPT[1:]),
    "LAST without a discount": _script(*_SCRIPT[:3], (LAST, 3.0, None)),
    "MID without a reward": _script(_SCRIPT[0], (MID, None, 1.0), *_SCRIPT[2:]),
    "truncated": _script(*_SCRIPT[:3], (LAST, 3.0, 1.0)),
    "begins in the middle": _script((MID, 2.0, 1.0), *_SCRIPT[1:]),
    "type 7": _wrong([_SCRIPT[0], (7, 1.0, 1.0), *_SCRIPT[2:]], 1,
                     "step of Timed returned a TimeStep of the type 7"),
    "FIRST in the middle": _wrong([_SCRIPT[0], _SCRIPT[0], *_SCRIPT[2:]], 1,
                                  "step of Timed returned a FIRST step in the middle"),
    "a type that is a text": _wrong([_SCRIPT[0], ("MID", 1.0, 1.0), *_SCRIPT[2:]], 1,
                                    "step of Timed returned a TimeStep of the type 'MID'"),
    "a discount of 0.5": _wrong([_SCRIPT[0], (MID, 1.0, 0.5), *_SCRIPT[2:]], 1, "discount"),
    "returns None": Habit(functools.partial(Returning, value=None),
                          {1: Refused(("step of Returning returned None",))}),
    "returns a tuple": Habit(
        functools.partial(Returning, value=(np.zeros(2), 0.0, False, {})),
        {1: Refused(("step of Returning returned",))},
    ),
    # Rewards and discounts with specs of their own.
    "its own discount": _timed(
        script=[_SCRIPT[0], (MID, 1.0, 0.25), (MID, 2.0, 0.5), (LAST, 3.0, 0.75)],
        discount=specs.Array((), np.float32, "d"),
    ),
    "several discounts": _timed(
        script=[_SCRIPT[0], *((MID, 1.0, np.array([0.5, 0.25], "f4")) for _ in (1, 2)),
                (LAST, 3.0, np.array([0.5, 0.0], "f4"))],
        discount=specs.Array((2,), np.float32, "d"),
    ),
    "a reward of integers": _timed(
        script=[_SCRIPT[0], (MID, 1, 1.0), (MID, np.int8(2), 1.0), (LAST, 3, 0.0)],
        reward=specs.Array((), np.int64, "r"),
    ),
    "a reward of float32": _timed(
        script=[_SCRIPT[0], (MID, 0.1, 1.0), (MID, np.float64(0.2), 1.0), (LAST, 3, 0.0)],
        reward=specs.Array((), np.float32, "r"),
    ),
    "several rewards": _timed(
        script=[_SCRIPT[0], *((kind, np.array([1.0, -2.0]), discount)
                              for kind, discount in ((MID, 1.0), (MID, 1.0), (LAST, 0.0)))],
        reward=specs.Array((2,), np.float64, "r"),
    ),
    # Names and structures.
    "an order": _timed(
        spec={"z": array(2), "a": {"y": array(), "b": array(1)}, "m": array()},
        action={"turn": array(), "act": {"up": array(), "down": array(2)}},
    ),
    "observed in another order": _timed(
        spec={"z": array(), "a": array(2)},
        observe=lambda env: {"a": np.full(2, env.steps), "z": env.count},
    ),
    "names with periods": _timed(
        spec={"WORLD.RGB": array(2), "health": array(), "WORLD.DEPTH": array(1)}
    ),
    "keys of several types": _timed(spec={"b": array(), 2: array(), "": array()}),
    "lists and tuples": _timed(spec=[array(), (array(2), {"x": array()})]),
    "a named tuple": _timed(spec={"arms": Arms(array(2), array()), "torso": array()}),
    "a dataclass for a mapping": _timed(spec=_BODY, observe=_body),
    "an OrderedDict": _timed(spec=OrderedDict(b=array(), a=array())),
    # Values.
    "texts": _timed(spec={"one": specs.StringArray(()), "two": specs.StringArray((2,))}),
    "numbers of all kinds": _timed(
        spec={name: array(2, dtype=name) for name in (
            "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
            "uint64", "bool",
        )}
    ),
    "odd values that fit": _timed(
        spec={"f": array(2, dtype=np.float32), "i": array(2, dtype=np.int32), "s": array()},
        observe=lambda env: {"f": [0.1, env.count], "i": np.array([1.0, -2.0]), "s": True},
    ),
    "bounds": _timed(
        spec={
            "each": specs.BoundedArray((2,), np.float64, [-1, 0], [1, 2]),
            "one": specs.BoundedArray((1,), np.int32, 0, 999),
            "all": specs.BoundedArray((2, 2), np.int64, -5, 999),
        },
        action=_TORQUE,
        observe=lambda env: {
            "each": np.ones(2), "one": np.array([env.steps]), "all": np.full((2, 2), env.steps),
        },
    ),
    "no elements": _timed(spec={"none": array(0, 3), "some": array(1)}),
    "the same arrays": Habit(Reusing),
    "300 in a byte": _misfit({"x": array(2, dtype=np.uint8)}, {"x": [0, 300]},
                             "violates its own specs", "observation 'x'"),
    "a fraction in an integer": _misfit({"x": {"y": array(dtype=np.int32)}}, {"x": {"y": 1.5}},
                                        "violates its own specs", "observation 'x.y'"),
    "None among texts": _misfit(
        {"x": specs.StringArray((2,))}, {"x": np.array(["a", None], object)},
        "violates its own specs", "observation 'x'",
    ),
    "another shape": _misfit({"x": array(2)}, {"x": np.zeros(3)},
                             "violates its own specs", "observation 'x'"),
    "a key that is missing": _misfit({"x": array(), "y": array()}, {"x": 1.0}, "its own specs"),
    "a key too many": _misfit({"x": array()}, {"x": 1.0, "y": 1.0}, "violates its own specs"),
    "masked": _misfit({"x": array(2)}, {"x": np.ma.array([0.0, 1.0], mask=[False, True])},
                      "violates its own specs", "observation 'x'", "masked elements"),
    # Actions.
    "tells a nested action": Habit(
        functools.partial(
            Echoing,
            action={
                "z": specs.DiscreteArray(3), "a": (_TORQUE, {"on": array(dtype=np.bool_)}),
                "arms": Arms(array(dtype=np.int64), array(2)),
            },
        )
    ),
    "tells an array": Habit(functools.partial(Echoing, action=_TORQUE)),
    # Errors.
    "raises when it is made": _raising(OSError("no device"), "made"),
    "raises in reset": _raising(OSError("no device"), "reset", "RRsssrs"),
    "raises in a step": _raising(ZeroDivisionError("division by zero"), "step"),
    "raises in the last step": _raising(KeyError("gear"), "end", "RsssRsRs"),
    "raises in one row": _raising(OSError("one row"), "step", rows=(1,)),
}  # fmt: skip
"""By name."""
