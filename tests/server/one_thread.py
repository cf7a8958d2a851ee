"""Environments of one thread, which note the threads that call them."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from tests.server.hosted import Where

STEP_SECONDS = 0.003
"""So long that servers give such steps other threads."""


class Threads:
    """Notes which threads call what. Whoever makes it is not counted."""

    def __init__(self) -> None:
        self.seen: dict[str, set[int]] = {}
        self.closed = 0

    def note(self, what: str) -> None:
        self.seen.setdefault(what, set()).add(threading.get_ident())

    def the_one(self, *expected: str) -> int:
        """The one thread that called everything, among which is what is expected."""
        assert set(expected) <= self.seen.keys()
        (one,) = set.union(*self.seen.values())
        return one


class Level(dm_env.Environment):
    """An environment that takes the calls of one thread: it has a database in memory.

    Args:
      check_same_thread: whether that refuses the calls of other threads.
    """

    reset_settings = ("gain",)
    step_seconds = STEP_SECONDS

    def __init__(self, check_same_thread: bool = True) -> None:
        self._check_same_thread = check_same_thread
        self.threads = Threads()
        self._gain = 1
        self._database: sqlite3.Connection | None = None
        self.raises_in_close = False
        self.may_go_on = threading.Event()
        self.is_in_step = threading.Event()
        self.may_go_on.set()

    @property
    def properties(self) -> Mapping[str, Any]:
        self.threads.note("properties")
        return {"steps": self._count}

    @property
    def default_actions(self) -> Mapping[str, Any]:
        self.threads.note("default_actions")
        return {"go": 1}

    def _count(self) -> int:
        self.threads.note("getter")
        if self._database is None:
            return 0
        (count,) = self._database.execute("SELECT COUNT(*) FROM steps").fetchone()
        return int(count)

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.threads.note("configure")
        self._gain = int(settings["gain"])

    def action_spec(self) -> Any:
        self.threads.note("action_spec")
        return {"go": specs.DiscreteArray(2)}

    def observation_spec(self) -> Any:
        self.threads.note("observation_spec")
        return {"steps": specs.Array((), np.int64)}

    def reset(self) -> dm_env.TimeStep:
        self.threads.note("reset")
        if self._database is None:
            self._database = sqlite3.connect(":memory:", check_same_thread=self._check_same_thread)
            self._database.execute("CREATE TABLE steps (go INTEGER)")
        return dm_env.restart({"steps": np.int64(self._count())})

    def step(self, action: Any) -> dm_env.TimeStep:
        self.threads.note("step")
        self.is_in_step.set()
        self.may_go_on.wait()
        if self.step_seconds:
            time.sleep(self.step_seconds)  # It takes time to step.
        assert self._database is not None
        self._database.execute("INSERT INTO steps VALUES (?)", (int(action["go"]),))
        return dm_env.transition(float(self._gain), {"steps": np.int64(self._count())})

    def close(self) -> None:
        self.threads.note("close")
        self.threads.closed += 1
        if self._database is not None:
            self._database.close()
        if self.raises_in_close:
            raise OSError("cannot be closed")


class Ident(Where):
    """Observes its process, and whether its thread, which has made it, is the main one."""

    def __init__(self) -> None:
        super().__init__()
        self._made_by = threading.get_ident()

    def observation_spec(self) -> dict[str, specs.Array]:
        return {**super().observation_spec(), "is_main": specs.Array((), np.bool_)}

    def close(self) -> None:
        is_own = threading.get_ident() == self._made_by
        print(f"closed in its thread: {is_own}", flush=True)

    def _observed(self) -> dict[str, Any]:
        assert threading.get_ident() == self._made_by
        is_main = threading.current_thread() is threading.main_thread()
        return {**super()._observed(), "is_main": np.bool_(is_main)}
