"""A worker process, as the server's own process sees it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Mapping

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.processes import worker as in_worker
from dm_env_rpc_client.server.processes.asked_properties import answer_questions
from dm_env_rpc_client.server.processes.board import Board
from dm_env_rpc_client.server.processes.messages import say
from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.spawned import SpawnedChild
from dm_env_rpc_client.system.waiting import InterruptibleEvent

_log = logging.getLogger("dm_env_rpc_client.server")

_LOGGERS = ("", *(f"dm_env_rpc_client{name}" for name in ("", ".server", ".server.clients")))
"""Whose levels the workers have, too."""

ADVICE = (
    "pass what another process can import: a function or a class of a module, functools.partial of "
    "one, or a text such as 'my_module:make'"
)

LOOK_SECONDS = 0.25
"""How often a process is looked at."""

_END_SECONDS = 5.0
"""How long a worker may take to exit when it has closed its pipe."""


class WorkerProcess:
    """A worker process, which is started. Only the thread that supervises it waits for it.

    Args:
      options: pickled ServeOptions.
      properties: those of the server.
      board: what all processes see of one another.
      index: its place on the board.
      serial: its number among all that there ever were.

    Attributes:
      index: as the argument.
      serial: as the argument.
      row: its numbers.
      pid: the id of the process.
      control: to it.
      is_lost: whether its end is known, so that it gets no more connections.
      is_ready: whether it has begun to serve.
      has_closed: whether it has stopped and said that all of its worlds are closed.
      failure: what it said why it does not serve.
      ended: how it ended.
      has_begun: set when it is ready, or has ended.
    """

    def __init__(
        self, options: bytes, properties: Properties, board: Board, index: int, serial: int
    ):
        self.index = index
        self.serial = serial
        self.row = board.rows[index]
        self.is_lost = self.is_ready = self.has_closed = False
        self.failure = self.ended = ""
        self.has_begun = InterruptibleEvent()
        self._levels = _levels()
        self._stopped_looks = 0
        self._killed_because = ""
        answers, questions = MessagePipe.pair()
        threading.Thread(
            target=answer_questions,
            args=(properties, answers),
            name=f"dm_env_rpc answers worker {index}",
            daemon=True,
        ).start()
        arguments = options, questions, board, index, serial, self._levels
        with contextlib.closing(questions):
            self._process = SpawnedChild(
                in_worker.run, *arguments, name=f"dm_env_rpc worker {serial}"
            )
        self.control, self.pid = self._process.pipe, self._process.pid

    @property
    def is_clean(self) -> bool:
        """Whether none of its worlds is left open."""
        return self.has_closed or not self.is_ready

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.is_alive

    def check_begun(self) -> None:
        """Waits until it serves.

        Raises:
          SpecError: it cannot load what it is to serve.
          ChildProcessError: it has ended.
        """
        self.has_begun.wait()
        if self.is_ready and not self.ended:
            return
        if not self.failure:
            raise ChildProcessError(
                f"a worker process {self.ended} while it started; what it printed says why. A "
                "script that serves needs `if __name__ == '__main__':` around what it does"
            )
        raise SpecError(
            f"a worker process cannot load what it is to serve: {self.failure}; {ADVICE}. What is "
            "defined in a notebook or at a prompt cannot be imported: write it to a file"
        )

    def look_stopped(self) -> float:
        """Looks whether a signal has stopped the process, and returns for how many seconds.

        Looks are counted, not the clock: all processes may have been stopped together.
        """
        self._stopped_looks = self._stopped_looks + 1 if children.is_stopped(self.pid) else 0
        return self._stopped_looks * LOOK_SECONDS

    def tell_levels(self) -> None:
        """Tells it the levels of the loggers of this process, if they are others now."""
        levels = _levels()
        if levels != self._levels:
            self._levels = levels
            with contextlib.suppress(OSError):
                say(self.control, "levels", levels)

    def go_on(self) -> None:
        """Lets a stopped process continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self, because: str) -> None:
        """Kills the process, and says why where its end is told."""
        if not self._killed_because:
            self._killed_because = because
            _log.warning("worker process %d %s and is killed", self.pid, because)
            self._process.kill()

    def reap(self) -> None:
        """Waits until the process has ended, kills it if it does not, and says how it ended."""
        ended = children.how_it_ended(self._process.wait(_END_SECONDS))
        if self._killed_because:
            ended = f"{self._killed_because} and was killed"
        self.ended = ended
        self._process.close()


def _levels() -> Mapping[str, int]:
    return {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
