"""Environments with mistakes of their authors. Runs on Python 3.6, without gym and dm_env."""

import numpy as np

try:
    from dm_env import TimeStep
    from dm_env.specs import Array
except ImportError:
    from dm_env_rpc_server import Array, TimeStep

OBSERVATION = {"counter": 1}
RETURNS = {
    "None": None,
    "dict": OBSERVATION,
    "array": np.zeros(2, np.float32),
    "five": (OBSERVATION, 0.0, False, False, {}),
    "two": (OBSERVATION, {}),
    "TimeStep": TimeStep(1, 0.0, 1.0, np.zeros(2)),
}


class Countdown:
    """Without a mistake."""

    def action_spec(self):
        return {"subtract": Array((), np.int64)}

    def observation_spec(self):
        return {"counter": Array((), np.int64)}

    def reset(self):
        return TimeStep(0, None, None, OBSERVATION)

    def step(self, action):
        return TimeStep(1, 0.0, 1.0, OBSERVATION)


class Discrete:
    """A space."""

    shape, dtype, n, start = (), np.dtype(np.int64), 3, 0

    def sample(self):
        return 0

    def contains(self, element):
        return True

    def __str__(self):
        return "Discrete(3)"


class CountdownEnv:
    """The same for gym."""

    action_space = observation_space = Discrete()

    def reset(self):
        return 0

    def step(self, action):
        return 0, 0.0, False, {}

    def render(self):
        pass

    def close(self):
        pass


class CountdownVectorEnv(CountdownEnv):
    """The same for gym, in rows."""

    num_envs, single_action_space = 4, Discrete()


class CountdownRows(CountdownEnv):
    """The same, for a simulator that says only how many rows it has."""

    num_envs = 4


def make(method: str, value: str = "None", gym: bool = False):
    """Makes an environment whose method returns a value."""
    if method == "factory":
        made = {"None": None, "class": Countdown, "text": "CartPole-v1"}
        return {**made, "vector": CountdownVectorEnv(), "rows": CountdownRows()}[value]
    returned = Discrete() if value == "space" else RETURNS[value]
    base = CountdownEnv if gym else Countdown
    return type(base.__name__, (base,), {method: lambda *_, **__: returned})()
