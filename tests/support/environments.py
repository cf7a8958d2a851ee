"""Environments that the tests serve: the catalogue, with what `tests/travelling/environments` has.

What differs by values is made there: `of_dm_env.Timed` from a script, specs and a function that
observes, `usual.Usual` of Gymnasium with a method for each thing that it tells, and of PettingZoo
`of_agents.Agents`. A class of its own is for what does something that none of these do.
"""

from __future__ import annotations

import time
from typing import Any

import dm_env
import numpy as np
from dm_env import specs


class Echo(dm_env.Environment):
    """Observes the action that was taken; an episode has `length` steps."""

    def __init__(self, length: int = 1_000_000_000, seconds: float = 0.0):
        self._length = length
        self._seconds = seconds
        self._step = 0

    def action_spec(self) -> dict[str, specs.Array]:
        return {"value": specs.Array((), np.int64, "value")}

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"value": specs.Array((), np.int64, "value")}

    def reset(self) -> dm_env.TimeStep:
        self._step = 0
        return dm_env.restart({"value": np.int64(-1)})

    def step(self, action: Any) -> dm_env.TimeStep:
        time.sleep(self._seconds)  # It takes time to step.
        self._step += 1
        observation = {"value": action["value"]}
        if self._step == self._length:
            return dm_env.truncation(1.0, observation)
        return dm_env.transition(1.0, observation)


class Robot(dm_env.Environment):
    """Nested specs of many kinds."""

    def __init__(self, joints: int = 3, camera: dict[str, int] | None = None):
        self._joints = joints
        self._height = (camera or {}).get("height", 4)
        self._random = np.random.default_rng(0)

    def action_spec(self) -> dict[str, Any]:
        return {
            "arm": {
                "torque": specs.BoundedArray((self._joints,), np.float32, -1, 1, "torque"),
                "grip": specs.Array((), bool, "grip"),
            },
            "mode": specs.DiscreteArray(4, name="mode"),
            "speech": specs.StringArray((), name="speech"),
        }

    def observation_spec(self) -> dict[str, Any]:
        return {
            "camera": {
                "rgb": specs.BoundedArray((self._height, 5, 3), np.uint8, 0, 255, "rgb"),
                "depth": specs.Array((self._height, 5), np.float32, "depth"),
            },
            "joints": [specs.Array((), np.float64, "angle") for _ in range(self._joints)],
            "heard": specs.StringArray((2,), name="heard"),
        }

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._observe("", 0.0))

    def step(self, action: Any) -> dm_env.TimeStep:
        torque = float(np.sum(action["arm"]["torque"]))
        return dm_env.transition(torque, self._observe(str(action["speech"]), torque))

    def _observe(self, heard: str, angle: float) -> dict[str, Any]:
        return {
            "camera": {
                "rgb": self._random.integers(256, size=(self._height, 5, 3), dtype=np.uint8),
                "depth": self._random.random((self._height, 5), np.float32),
            },
            "joints": [np.float64(angle + joint) for joint in range(self._joints)],
            "heard": np.array([heard, heard.upper()], object),
        }


class Dice(dm_env.Environment):
    """Episodes of random lengths that end in both ways, from the seed and the rolls alone.

    Args:
      seed: of all that is random.
      fails_at: the number of the step that raises; 0 for none.
      name: is observed.
    """

    def __init__(self, seed: int = 0, fails_at: int = 0, name: str = ""):
        self._random = np.random.default_rng(seed)
        self._fails_at = fails_at
        self._name = name
        self._steps = 0

    def action_spec(self) -> dict[str, Any]:
        return {
            "bet": specs.DiscreteArray(7, name="bet"),
            "hand": {"push": specs.BoundedArray((2,), np.float32, [-1, -2], [1, 2], "push")},
            "word": specs.StringArray((), name="word"),
        }

    def observation_spec(self) -> dict[str, Any]:
        return {
            "dice": specs.BoundedArray((2, 3), np.uint8, 1, 6, "dice"),
            "table": {
                "total": specs.Array((), np.float64, "total"),
                "left": specs.Array((), np.int32, "left"),
            },
            "cups": specs.Array((3,), bool, "cups"),
            "words": specs.StringArray((2,), name="words"),
        }

    def reset(self) -> dm_env.TimeStep:
        self._left = int(self._random.integers(1, 6))
        return dm_env.restart(self._observed("", 0.0))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._steps += 1
        if self._steps == self._fails_at:
            raise ValueError(f"{self._name} has lost the dice")
        self._left -= 1
        total = float(action["bet"]) + float(action["hand"]["push"].sum())
        observation = self._observed(str(action["word"]), total)
        if self._left:
            return dm_env.transition(total, observation)
        end = dm_env.termination if self._random.random() < 0.5 else dm_env.truncation
        return end(total, observation)

    def _observed(self, word: str, total: float) -> dict[str, Any]:
        return {
            "dice": self._random.integers(1, 7, (2, 3), np.uint8),
            "table": {"total": np.float64(total), "left": np.int32(self._left)},
            "cups": self._random.random(3) < 0.5,
            "words": np.array([self._name, word], object),
        }


class Constant(dm_env.Environment):
    """Observes the same in each step, of which its episodes have one.

    Args:
      observations: its specs.
      values: what is observed; None for values that the specs generate.
      actions: their specs.
    """

    def __init__(
        self,
        observations: dict[str, specs.Array],
        values: dict[str, Any] | None = None,
        actions: dict[str, specs.Array] | None = None,
    ):
        self._specs = observations
        self._values = values or {
            name: spec.generate_value() for name, spec in observations.items()
        }
        self._actions = actions or {}

    def action_spec(self) -> dict[str, specs.Array]:
        return self._actions

    def observation_spec(self) -> dict[str, specs.Array]:
        return self._specs

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._values)

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.termination(1.0, self._values)


class Broken(dm_env.Environment):
    """Fails in the method that `at` names."""

    def __init__(self, at: str, kind: str = "RuntimeError"):
        self._at = at
        self._kind: type[Exception] = getattr(__builtins__, kind, RuntimeError)
        self._fail("__init__")

    def _fail(self, method: str) -> None:
        if method == self._at:
            raise self._kind(f"broken in {method}")

    def action_spec(self) -> Any:
        self._fail("action_spec")
        if self._at == "ambiguous":
            return {"a": specs.Array((), np.int32), "a.b": specs.Array((), np.int32)}
        return {"a": specs.Array((), np.int32)}

    def observation_spec(self) -> Any:
        self._fail("observation_spec")
        dtype = np.complex64 if self._at == "dtype" else np.int32
        name = "reward" if self._at == "name" else "o"
        return {name: specs.Array((), dtype)}

    def reset(self) -> dm_env.TimeStep:
        self._fail("reset")
        return dm_env.restart({"o": np.int32(0)})

    def step(self, action: Any) -> dm_env.TimeStep:
        self._fail("step")
        return dm_env.transition(0.0, {"o": np.int32(0)})

    def close(self) -> None:
        self._fail("close")
