"""An environment that says whether it is in the main thread; for any Python."""

import threading

import dm_env_rpc_server as rpc
import numpy as np


def _is_main():
    return threading.current_thread() is threading.main_thread()


class Main:
    """Observes whether it was made and is called in the main thread."""

    def __init__(self):
        self._is_made_there = _is_main()

    def action_spec(self):
        return {}

    def observation_spec(self):
        return {"is_main": rpc.Array((), np.bool_)}

    def reset(self):
        return self._observed(rpc.FIRST)

    def step(self, action):
        return self._observed(rpc.MID)

    def close(self):
        print("closed in the main thread: {}".format(_is_main()), flush=True)

    def _observed(self, kind):
        first = kind == rpc.FIRST
        observation = {"is_main": np.bool_(self._is_made_there and _is_main())}
        return rpc.TimeStep(kind, None if first else 0.0, None if first else 1.0, observation)


make = Main
