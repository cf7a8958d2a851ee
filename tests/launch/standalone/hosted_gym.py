"""Environments of gym, of any age, and of Gymnasium; runs on Python 3.6."""

import collections

import numpy as np

try:
    import gymnasium as gym
except ImportError:
    import gym

IS_OLD = gym.__name__ == "gym" and tuple(map(int, gym.__version__.split(".")[:2])) < (0, 26)
spaces = gym.spaces


class Many(gym.Env):
    """Echoes its action, in spaces of all kinds; says in its info how it was reset."""

    if IS_OLD:
        metadata = {"render.modes": ["rgb_array"], "render_fps": 4, "name": "many"}
    else:
        metadata = {"render_modes": ["rgb_array"], "render_fps": 4, "name": "many"}
        render_mode = "rgb_array"

    def __init__(self, length=5):
        self._length = length
        low = np.array([[-1.5, -np.inf], [0, 2]], np.float32)
        high = np.array([[1.5, np.inf], [1, 7]], np.float32)
        parts = [
            ("a.b", spaces.Box(low, high, dtype=np.float32)),
            ("bits", spaces.MultiBinary(4)),
            ("dials", spaces.MultiDiscrete([3, 4])),
            ("pair", spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 255, (2,), np.uint8)))),
            ("reward", spaces.Discrete(3)),
        ]
        self.action_space = spaces.Dict(collections.OrderedDict(parts))
        self.observation_space = spaces.Dict(collections.OrderedDict(parts))
        self._seed = None

    def seed(self, seed=None):
        self._seed = seed
        return [seed]

    def _begin(self, seed, options):
        self._step = 0
        info = {"seed": seed, "options": options, "array": np.arange(3, dtype=np.int16)}
        zeros = np.zeros(2, np.int64)
        first = np.array([[0, 0], [0, 2]], np.float32)
        observation = {"a.b": first, "bits": np.zeros(4, np.int8), "dials": zeros}
        observation.update(pair=(0, np.zeros(2, np.uint8)), reward=1)
        return observation, info

    if IS_OLD:

        def reset(self):
            return self._begin(self._seed, None)[0]

        def step(self, action):
            observation, reward, terminated, truncated, info = self._next(action)
            if truncated:
                info["TimeLimit.truncated"] = True
            return observation, reward, terminated or truncated, info

        def render(self, mode="rgb_array"):
            return self._frame()

    else:

        def reset(self, seed=None, options=None):
            return self._begin(seed, options)

        def step(self, action):
            return self._next(action)

        def render(self):
            return self._frame()

    def _next(self, action):
        assert self.action_space.contains(action), action
        self._step += 1
        info = {"step": self._step, "nested": {"x": (1, "two", None)}, "nan": float("nan")}
        is_last = self._step == self._length
        return dict(action), 0.25 * self._step, is_last and self._length % 2 == 1, is_last, info

    def _frame(self):
        return np.full((4, 6, 3), self._step, np.uint8)

    def close(self):
        pass
