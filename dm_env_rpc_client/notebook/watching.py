"""Sees the steps and resets of an environment, whoever takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client.system.locks import make_rlock

Saw = Callable[[Any, dm_env.TimeStep], object]
"""Called with an action, and the TimeStep that it led to; with None for one that is FIRST."""


class Watch:
    """Calls back for every `step` and `reset` of an environment, also for those of other code.

    It takes the place of both methods on the object, until `close`. Calls of several threads wait
    for each other. An object without a `__dict__` is seen only where this object steps it.

    Args:
      env: the environment.
      saw: called in the thread that has stepped, while others wait.

    Attributes:
      lock: held during a call, and while `saw` is called.
    """

    def __init__(self, env: dm_env.Environment, saw: Saw):
        self.lock = make_rlock()
        self._saw: Saw | None = saw
        self._depth = 0
        self._own = {"step": env.step, "reset": env.reset}
        self._attributes: dict[str, Any] = getattr(env, "__dict__", {})
        self._before = {name: self._attributes.get(name) for name in self._own}
        self._placed = {"step": self.step, "reset": self.reset}
        self._attributes.update(self._placed)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Steps the environment."""
        return self._call("step", action, (action,), {})

    def reset(self, *args: Any, **kwargs: Any) -> dm_env.TimeStep:
        """Resets the environment."""
        return self._call("reset", None, args, kwargs)

    def close(self) -> None:
        """Gives the environment its methods back; calls back no more."""
        with self.lock:
            self._saw = None
        for name, placed in self._placed.items():
            # What another has put over it since calls it, and goes on to.
            if self._attributes.get(name) == placed:
                before = self._before[name]
                if before is None:
                    del self._attributes[name]
                else:
                    self._attributes[name] = before

    def _call(self, name: str, action: Any, args: Any, kwargs: Any) -> dm_env.TimeStep:
        with self.lock:
            self._depth += 1
            try:
                timestep: dm_env.TimeStep = self._own[name](*args, **kwargs)
            finally:
                self._depth -= 1
            # A reset may step; that is one call.
            if self._depth == 0 and self._saw is not None:
                self._saw(None if _begins(timestep) else action, timestep)
        return timestep


def _begins(timestep: dm_env.TimeStep) -> bool:
    return bool(np.all(np.asarray(timestep.step_type) == dm_env.StepType.FIRST))
