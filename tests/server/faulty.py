"""Environments that are at fault, in a step or when a sequence begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from google.rpc import code_pb2, status_pb2
from gymnasium import spaces

from dm_env_rpc_client import DmEnvRpcError, ProtocolError, SpecError


class UnreadableError(Exception):
    """An error whose text is one itself."""

    def __str__(self) -> str:
        raise OSError("there is no text")


def _refusal() -> DmEnvRpcError:
    """Of another server, whose client the environment is."""
    status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="not here")
    return DmEnvRpcError(status)


RAISED: dict[str, Callable[[], Exception]] = {
    "SpecError": lambda: SpecError("not that"),
    "ProtocolError": lambda: ProtocolError("not that"),
    "DmEnvRpcError": _refusal,
    "ValueError": lambda: ValueError("not that"),
    "KeyError": lambda: KeyError("not that"),
    "AttributeError": lambda: AttributeError("not that"),
    "a surrogate": lambda: OSError("\ud800"),
    "an error without text": UnreadableError,
    "a long text": lambda: RuntimeError("x" * 1_000_000),
}
"""What any method may raise."""

GOOD = {"seen": np.uint8(7)}

MID: dict[str, dm_env.TimeStep] = {
    "an observation of another dtype": dm_env.transition(1.0, {"seen": 1.5}),
    "an observation too large": dm_env.transition(1.0, {"seen": np.int64(300)}),
    "an observation of another shape": dm_env.transition(1.0, {"seen": np.zeros(2, np.uint8)}),
    "an observation that is a text": dm_env.transition(1.0, {"seen": "7"}),
    "no observation": dm_env.transition(1.0, None),
    "another observation": dm_env.transition(1.0, {"heard": np.uint8(7)}),
    "a reward that is a text": dm_env.transition("1", GOOD),
    "a reward of another shape": dm_env.transition(np.ones(1), GOOD),
    "a complex reward": dm_env.transition(1j, GOOD),
    "a discount that is not sent": dm_env.transition(1.0, GOOD, 0.5),
    "a FIRST step": dm_env.restart(GOOD),
    "a type 7": dm_env.TimeStep(7, 1.0, 1.0, GOOD),
}
"""What `step` may return."""


class Faulty(dm_env.Environment):
    """Does what `fault` names in the method `at`."""

    def __init__(self, fault: str, at: str = "step"):
        self._fault, self._at = fault, at
        self._do("constructor")

    def _do(self, method: str) -> None:
        if method == self._at and self._fault in RAISED:
            error = RAISED[self._fault]()
            raise error

    def action_spec(self) -> Any:
        return {"move": specs.BoundedArray((), np.int32, 0, 3, "move")}

    def observation_spec(self) -> Any:
        return {"seen": specs.Array((), np.uint8, "seen")}

    def reset(self) -> dm_env.TimeStep:
        self._do("reset")
        return dm_env.restart(GOOD)

    def step(self, action: Any) -> dm_env.TimeStep:
        self._do("step")
        return MID.get(self._fault, dm_env.transition(1.0, GOOD))

    def close(self) -> None:
        self._do("close")


SEEN = np.zeros(2, np.uint8)

RETURNED: dict[str, Any] = {
    "an element too large": (np.array([1, 300]), 0.0, False, False, {}),
    "a negative element": ([-1, 0], 0.0, False, False, {}),
    "a fraction": (np.array([0.5, 0]), 0.0, False, False, {}),
    "NaN": (np.array([np.nan, 0]), 0.0, False, False, {}),
    "a text": (np.array(["1", "2"]), 0.0, False, False, {}),
    "another shape": (np.zeros(3, np.uint8), 0.0, False, False, {}),
    "nothing": (None, 0.0, False, False, {}),
    "no reward": (SEEN, None, False, False, {}),
    "a reward that is a text": (SEEN, "1", False, False, {}),
    "a reward of another shape": (SEEN, np.ones(1), False, False, {}),
    "four values": (SEEN, 0.0, False, {}),
    "one value": SEEN,
}
"""What `step` of a Gymnasium environment may return."""


class FaultyEnv(gymnasium.Env[Any, Any]):
    """The same for Gymnasium."""

    action_space = spaces.Discrete(4)
    observation_space = spaces.Box(0, 255, (2,), np.uint8)

    def __init__(self, fault: str, at: str = "step"):
        self._fault, self._at = fault, at

    def _do(self, method: str) -> None:
        if method == self._at and self._fault in RAISED:
            error = RAISED[self._fault]()
            raise error

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._do("reset")
        returned = RETURNED.get(self._fault) if self._at == "reset" else None
        return (SEEN if returned is None else returned[0]), {}

    def step(self, action: Any) -> Any:
        self._do("step")
        return RETURNED.get(self._fault, (SEEN, 0.0, False, False, {}))
