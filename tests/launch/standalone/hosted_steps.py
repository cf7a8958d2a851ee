"""Environments whose TimeSteps or rewards are those of a script. Runs on Python 3.6."""

import numpy as np

try:
    from dm_env import TimeStep
    from dm_env.specs import Array, BoundedArray, StringArray
except ImportError:
    from dm_env_rpc_server import Array, BoundedArray, StringArray, TimeStep

FIRST, MID, LAST = 0, 1, 2
BEGIN, GO_ON, END = (FIRST, None, None), (MID, 2.0, 1.0), (LAST, 3.0, 0.0)

SCRIPTS = {
    "as it should be": [BEGIN, GO_ON, END, BEGIN, GO_ON],
    "int of NumPy": [BEGIN, (np.int64(2), 3.0, 0.0), (np.int8(0), None, None), GO_ON],
    "array": [BEGIN, (np.array(1), 2.0, 1.0), (np.array(2), 3.0, 1.0), BEGIN],
    "begins in the middle": [GO_ON, GO_ON, END, BEGIN],
    "a reward and a discount of FIRST": [(FIRST, 5.0, 0.0), GO_ON, (LAST, 1.0, 1.0), BEGIN],
    "no discount of LAST": [BEGIN, (LAST, 3.0, None), BEGIN],
    "no discount of MID": [BEGIN, (MID, 3.0, None), END],
    "no reward": [BEGIN, (MID, None, 1.0), (LAST, None, 1.0)],
    "seven": [BEGIN, (7, 2.0, 1.0), GO_ON, END, BEGIN],
    "None": [BEGIN, (None, 2.0, 1.0), GO_ON, END, BEGIN],
    "a text": [BEGIN, ("LAST", 2.0, 1.0), GO_ON, END, BEGIN],
    "FIRST in the middle": [BEGIN, BEGIN, GO_ON, END, BEGIN],
    "begins with LAST": [END, BEGIN, GO_ON],
    "begins with seven": [(7, None, None), BEGIN, GO_ON],
}


class Scripted:
    """Its TimeSteps count."""

    def __init__(self, script: str, own_discount: bool = False):
        self._script, self._own, self._count = SCRIPTS[script], own_discount, 0

    def action_spec(self):
        return BoundedArray((), np.int32, 0, 1, "action")

    def observation_spec(self):
        return {"count": Array((), np.int64), "method": StringArray(())}

    def reward_spec(self):
        return Array((), np.float64)

    def discount_spec(self):
        return Array((), np.float32) if self._own else None

    def reset(self):
        return self._next("reset")

    def step(self, action):
        return self._next("step")

    def close(self):
        """Does nothing."""

    def _next(self, method):
        step = self._script[min(self._count, len(self._script) - 1)]
        self._count += 1
        return TimeStep(*step, {"count": np.int64(self._count), "method": method})


class Discrete:
    """A space."""

    shape, dtype, n, start = (), np.dtype(np.int64), 3, 0

    def sample(self):
        return np.int64(0)

    def contains(self, element):
        return True


REWARDS = {
    "float": 0.5,
    "int": 2,
    "float32": np.float32(0.5),
    "array": np.array(0.25),
    "text": "0.5",
    "None": None,
    "complex": 1j,
    "two": np.zeros(2),
    "list": [1.0],
}


class Rewarding:
    """Of gym; its reward is one of these, and its observation tells the type of the action."""

    action_space = observation_space = Discrete()

    def __init__(self, reward: str):
        self._reward = REWARDS[reward]

    def reset(self):
        return 0

    def step(self, action):
        return int(type(action) is np.int64), self._reward, False, {}

    def render(self):
        """Does nothing."""

    def close(self):
        """Does nothing."""


def make(script: str = "", own_discount: bool = False, reward: str = ""):
    return Rewarding(reward) if reward else Scripted(script, own_discount)
