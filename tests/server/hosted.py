"""Environments that say which process they are in; light, because worker processes import them."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client.server.processes.worker_main import Worker

RAISE, END, SLEEP, WARN, HOLD = 1, 2, 3, 4, 5
"""Actions; others do nothing."""

SLEEP_SECONDS, HOLD_SECONDS = 0.5, 4.0

HELD = "DM_ENV_RPC_TESTS_HELD"
"""The variable with the path of a file that HOLD makes when it begins."""


class OwnError(Exception):
    """An exception that cannot be made from its arguments."""

    def __init__(self, first: str, second: str):
        super().__init__(first)
        self.lock = threading.Lock()  # Nor can it be pickled.


class Where(dm_env.Environment):
    """Observes the id of its process. Actions do something to it."""

    def __init__(self, note: str = "", doubled: int = 0):
        self._factor = 2 if doubled else 1

    def action_spec(self) -> dict[str, specs.Array]:
        return {"do": specs.DiscreteArray(6, dtype=np.int32, name="do")}

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"pid": specs.Array((), np.int64, "pid")}

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._observed())

    def step(self, action: Any) -> dm_env.TimeStep:
        if action["do"] == RAISE:
            raise OwnError("told to", "raise")
        if action["do"] == END:
            os.kill(os.getpid(), signal.SIGKILL)
        if action["do"] == SLEEP:
            time.sleep(SLEEP_SECONDS)  # It takes time to step.
        if action["do"] == HOLD:  # As C code does that never lets other threads run.
            if HELD in os.environ:
                Path(os.environ[HELD]).touch()
            ctypes.PyDLL(None).usleep(int(HOLD_SECONDS * 1e6))
        if action["do"] == WARN:
            logging.getLogger("tests.hosted").warning("warned by %s", "an environment")
        return dm_env.transition(0.0, self._observed())

    def _observed(self) -> dict[str, Any]:
        return {"pid": np.int64(os.getpid() * self._factor)}


class Closing(Where):
    """Leaves a file in a folder while it is open, and renames it when it is closed.

    Args:
      folder: the path of the folder.
      seconds: how long closing takes.
    """

    def __init__(self, folder: str, seconds: float = 0.0):
        super().__init__()
        self._seconds = seconds
        self._path = Path(folder) / f"{os.getpid()}-{id(self)}.open"
        self._path.touch()

    def close(self) -> None:
        time.sleep(self._seconds)  # It takes time to close.
        self._path.rename(self._path.with_suffix(".closed"))


class ForksInC(Where):
    """Forks as C code does, of which Python is not told: the child keeps all that is open.

    Args:
      path: of a file in which it writes the id of the child.
    """

    def __init__(self, path: str):
        super().__init__()
        c = ctypes.CDLL(None)
        child = c.fork()
        if not child:
            c.pause()
        Path(path).write_text(str(child))


class EndsAtOnce(Where):
    """Its constructor ends its process."""

    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Unclosable(Where):
    """Cannot be closed."""

    def close(self) -> None:
        raise RuntimeError("cannot be closed")


class Terminating(Where):
    """Observes how a program that it starts, and a process that it forks, end by SIGTERM."""

    def _observed(self) -> dict[str, Any]:
        program = subprocess.Popen(["sleep", "300"])
        program.terminate()
        forked = os.fork()
        if not forked:
            time.sleep(300)  # Until it is ended.
            os._exit(0)
        os.kill(forked, signal.SIGTERM)
        codes = {program.wait(), os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])}
        (code,) = codes
        return {"pid": np.int64(code)}


class StopsItself(Where):
    """Stops its process by SIGSTOP instead of closing, as often as that is continued."""

    def close(self) -> None:
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)


class StopsInAMessage(Where):
    """Stops its process by SIGSTOP within a message to the server's own process."""

    def close(self) -> None:
        frame: Any = sys._current_frames()[threading.main_thread().ident or 0]
        while True:
            if isinstance(frame.f_locals.get("self"), Worker):
                break
            frame = frame.f_back
        frame.f_locals["self"]._control._socket.send(b"\0\0")  # The message has a length first.
        os.kill(os.getpid(), signal.SIGSTOP)


class SlowToLoad:
    """A factory that takes a minute to unpickle, once its folder has a file `slow`."""

    def __init__(self, folder: str):
        self.folder = folder

    def __call__(self) -> Where:
        return Where()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        path = Path(self.folder)
        if (path / "slow").exists():
            (path / f"{os.getpid()}.loads").touch()
            time.sleep(60)  # Until it is killed.


class Endless(Where):
    """Never returns from a step, whatever is raised in it."""

    def step(self, action: Any) -> dm_env.TimeStep:
        while True:
            try:
                while True:
                    time.sleep(0.1)  # Until it is killed.
            except BaseException:
                pass


def closed(folder: Path) -> list[int]:
    """The processes whose environments were closed, one for each; fails if one is open."""
    names = [path.name for path in folder.iterdir()]
    assert not [name for name in names if name.endswith(".open")], names
    found = [re.fullmatch(r"(\d+).*\.closed", name) for name in names]
    return sorted(int(match[1]) for match in found if match)


def _report(where: Any) -> None:
    where.put(os.getpid())


class WithProcess(Where):
    """Has a process of its own."""

    def __init__(self) -> None:
        super().__init__()
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        child = context.Process(target=_report, args=(queue,))
        child.start()
        child.join()
        assert queue.get() == child.pid


def make(**settings: Any) -> Where:
    """A factory."""
    return Where(**settings)


class Quiet(Where):
    """Takes the settings of the C++ client, and any action."""

    def __init__(self, payload: str, bytes: int):  # the name of the setting
        super().__init__()

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.transition(0.0, self._observed())
