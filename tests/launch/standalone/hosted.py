"""Environments that both servers serve. Runs on Python 3.6, with dm_env or without it."""

import os
import threading
import time

import numpy as np

try:
    from dm_env import Environment, TimeStep
    from dm_env.specs import Array, BoundedArray, StringArray
except ImportError:
    from dm_env_rpc_server import Array, BoundedArray, StringArray, TimeStep

    Environment = object

DTYPES = ["f4", "f8", "i1", "i4", "i8", "u1", "u4", "u8", "?"]


class Everything(Environment):
    """Echoes actions of every dtype, in the shapes ([], [3], [0, 2], [40, 5]); nested."""

    def __init__(self, length: int = 7, label: str = ""):
        if length < 1:
            raise ValueError("length must be positive, got {}".format(length))
        self._length, self._label = length, label
        self._random = np.random.RandomState(5)

    def action_spec(self):
        specs = {}
        for dtype in DTYPES:
            parts = [_spec((), dtype), _spec((3,), dtype)]
            specs[dtype] = {"some": tuple(parts), "none": _spec((0, 2), dtype)}
            specs[dtype]["many"] = _spec((40, 5), dtype)
        specs["text"] = StringArray((), name="text")
        return specs

    def observation_spec(self):
        specs = self.action_spec()
        specs["texts"] = [StringArray((2,), name="texts"), Array((-1, 2), np.int32, "free")]
        return specs

    def reset(self):
        self._step = 0
        echo = {}
        for dtype in DTYPES:
            zeros = [np.zeros(shape, dtype) for shape in ((), (3,), (0, 2), (40, 5))]
            zeros[1][2] = 5  # The bound of integers.
            echo[dtype] = {"some": tuple(zeros[:2]), "none": zeros[2], "many": zeros[3]}
        return TimeStep(0, None, None, self._observed(dict(echo, text="")))

    def step(self, action):
        if self._step == self._length:
            return self.reset()
        self._step += 1
        if self._step < self._length:
            return TimeStep(1, 0.5 * self._step, 1.0, self._observed(action))
        discount = float(self._random.randint(2))
        return TimeStep(2, self._random.rand(), discount, self._observed(action))

    def _observed(self, action):
        free = self._random.randint(-(2**31), 2**31 - 1, (self._step, 2)).astype(np.int32)
        texts = np.array(["grüße" * self._step, self._label], object)
        return dict(action, texts=[texts, free])


def _spec(shape, dtype):
    if dtype == "?":
        return Array(shape, bool, "bool")
    if dtype.startswith("f"):
        return BoundedArray(shape, dtype, -np.inf, np.inf, dtype)
    info = np.iinfo(dtype)
    if shape == (3,):  # One bound for each element.
        return BoundedArray(shape, dtype, [info.min, 0, 5], [info.max, 3, 5], dtype)
    return BoundedArray(shape, dtype, info.min, info.max, dtype)


class Catch(Environment):
    """A ball that falls on a board: the example of this package, shortened."""

    def __init__(self, rows: int = 10, columns: int = 5, until: str = ""):
        self._shape = (rows, columns)
        while until and not os.path.exists(until):
            time.sleep(0.01)  # The file may be there; a test makes it in another process.

    def action_spec(self):
        return {"paddle": BoundedArray((), np.int32, 0, 2, "paddle")}

    def observation_spec(self):
        return {"board": BoundedArray(self._shape, np.float32, 0.0, 1.0, "board")}

    def reset(self):
        self._row = 0
        return TimeStep(0, None, None, self._observed())

    def step(self, action):
        if self._row == self._shape[0] - 1:
            return self.reset()
        self._row += 1
        is_last = self._row == self._shape[0] - 1
        return TimeStep(2 if is_last else 1, 0.0, 0.0 if is_last else 1.0, self._observed())

    def _observed(self):
        board = np.zeros(self._shape, np.float32)
        board[self._row] = 1
        return {"board": board}


class Large(Environment):
    """Returns its action, bytes of any number."""

    def action_spec(self):
        return {"bytes": Array((-1,), np.uint8, "bytes")}

    observation_spec = action_spec

    def reset(self):
        return TimeStep(0, None, None, {"bytes": np.zeros(1, np.uint8)})

    def step(self, action):
        return TimeStep(1, 0.0, 1.0, action)


class Threads(Large):
    """Tells in which thread it is called, after as many seconds as the action says."""

    def __init__(self):
        self._thread = threading.get_ident()

    def action_spec(self):
        return {"seconds": Array((), np.float64, "seconds")}

    def observation_spec(self):
        return {"thread": Array((), np.int64, "thread")}

    def reset(self):
        return TimeStep(0, None, None, self._observed())

    def step(self, action):
        time.sleep(float(action["seconds"]))  # It takes time to step.
        return TimeStep(1, 0.0, 1.0, self._observed())

    def _observed(self):
        return {"thread": int(threading.get_ident() == self._thread)}
