"""An environment that says whether it is in the main thread; for any Python."""

import threading
from typing import Any, Dict

import dm_env_rpc_server as rpc
import numpy as np


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class Main:
    """Observes whether it was made and is called in the main thread."""

    def __init__(self) -> None:
        self._is_made_there = _is_main()

    def action_spec(self) -> Dict[str, Any]:
        return {}

    def observation_spec(self) -> Dict[str, Any]:
        return {"is_main": rpc.Array((), np.bool_)}

    def reset(self) -> Any:
        return self._observed(rpc.FIRST)

    def step(self, action: Any) -> Any:
        return self._observed(rpc.MID)

    def close(self) -> None:
        print("closed in the main thread: {}".format(_is_main()), flush=True)

    def _observed(self, kind: int) -> Any:
        first = kind == rpc.FIRST
        observation = {"is_main": np.bool_(self._is_made_there and _is_main())}
        return rpc.TimeStep(kind, None if first else 0.0, None if first else 1.0, observation)


make = Main
