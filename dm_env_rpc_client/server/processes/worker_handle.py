"""A worker process as seen by the server's own process."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.processes import worker_main
from dm_env_rpc_client.server.processes.for_workers import answer_questions
from dm_env_rpc_client.server.processes.messages import receive_message, send_message
from dm_env_rpc_client.server.processes.registry import WorkerShare
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.worlds.world_registry import Share
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.spawned import SpawnedChild
from dm_env_rpc_client.system.waiting import InterruptibleEvent

_log = logging.getLogger("dm_env_rpc_client.server")

_LOGGERS = ("", *(f"dm_env_rpc_client{name}" for name in ("", ".server", ".server.clients")))
"""Loggers whose levels are also set in the workers."""

ADVICE = (
    "pass something that another process can import: a function or a class of a module, "
    "functools.partial of one, or a string such as 'my_module:make'"
)

LOOK_SECONDS = 0.25
"""Interval, in seconds, between checks of a worker process."""

_BEHIND_SECONDS = 1.0
"""Time limit, in seconds, for a worker to accept a stream. If a worker takes longer, new streams
go to other workers."""

_END_SECONDS = 5.0
"""Time limit, in seconds, for a worker to exit after it has closed its pipe."""


class WorkerProcess:
    """A worker process, which starts when this object is created.

    Only its supervising thread waits for it to end.

    Args:
      options: pickled ServeOptions.
      properties: the properties of the server.
      share: counts its worlds against the limits.
      counted: its counters of requests.
      index: its place among the workers.
      serial: its number among all workers ever started.

    Attributes:
      index: as the argument.
      share: as the argument.
      pid: the id of the process.
      control: the pipe for commands to it and its reports.
      is_lost: whether its end is known, so that it gets no more streams.
      is_ready: whether it has begun to serve.
      has_closed: whether it has stopped and reported that all of its worlds are closed.
      failure: the reason it reported for not serving.
      ended: a description of its end.
      has_begun: set when it is ready, or has ended.
    """

    def __init__(
        self,
        options: bytes,
        properties: Properties,
        share: WorkerShare,
        counted: ctypes.Array[ctypes.c_int64],
        index: int,
        serial: int,
    ):
        self.index = index
        self.share = share
        self.is_lost = self.is_ready = self.has_closed = False
        self.failure = self.ended = ""
        self.has_begun = InterruptibleEvent()
        self._levels = _levels()
        self._stopped_looks = 0
        self._killed_because = ""
        # The number of streams handed to the worker and not taken yet, and the time since when it
        # has taken none.
        self._handing = make_lock()
        self._untaken = 0
        self._untaken_since = 0.0
        self._pipes: weakref.WeakSet[MessagePipe] = weakref.WeakSet()
        # Held by the thread that reads the worker's messages: any thread may.
        self._receiving = make_lock()
        with contextlib.ExitStack() as stack:
            # Requests of the worker have pipes of their own: an answer may wait for a lock, and
            # must not delay the control pipe.
            questions = [
                stack.enter_context(contextlib.closing(_answering(asked, index)))
                for asked in (properties, share)
            ]
            # `counted` is shared memory that outlives the process: the replacement continues the
            # counts.
            arguments = options, *questions, counted, self._levels
            self._process = SpawnedChild(
                worker_main.run, *arguments, name=f"dm_env_rpc worker {serial}"
            )
        self.control, self.pid = self._process.pipe, self._process.pid

    @property
    def is_able(self) -> bool:
        """Whether the worker can accept more streams: it serves, and no signal has stopped it."""
        return (
            self.is_ready
            and not self.is_lost
            and not self.control.has_hung_up()
            and not children.is_stopped(self.pid)
        )

    @property
    def is_behind(self) -> bool:
        """Whether the worker is slow to accept a stream because other code holds its GIL."""
        return self._untaken > 0 and time.monotonic() - self._untaken_since > _BEHIND_SECONDS

    def connect(self, what: str, *arguments: Any) -> MessagePipe:
        """Return this process's end of a new pipe for a stream or for rows of a batch.

        Args:
          what: "stream" or "rows".
          *arguments: further parts of the message, such as the stream's client.

        Raises:
          OSError: the worker has ended.
        """
        mine, other = MessagePipe.pair()
        with contextlib.closing(other):
            with self._handing:
                # `reap` has closed the pipes handed out before; a later one would never be closed.
                if self.ended:
                    raise BrokenPipeError
                self._pipes.add(mine)
                if not self._untaken:
                    self._untaken_since = time.monotonic()
                self._untaken += 1
            try:
                send_message(self.control, what, *arguments, descriptor=other.fileno())
            except OSError:
                mine.close()
                raise
        return mine

    def taken(self) -> None:
        """Record that the worker has accepted a stream."""
        with self._handing:
            self._untaken -= 1
            self._untaken_since = time.monotonic()

    def receive(self, take: Callable[[WorkerProcess, tuple[Any, ...]], None]) -> None:
        """Process all messages sent by the worker.

        Args:
          take: called with each message.

        Raises:
          EOFError, OSError: the worker has ended.
        """
        with self._receiving:
            while True:
                # `reap` closes the pipe under this lock, so a reader never sees a reused
                # descriptor.
                if self.ended or not self.control.wait(0.0):
                    return
                message, _ = receive_message(self.control)
                try:
                    take(self, message)
                except Exception:
                    _log.exception("a message of a worker process cannot be taken")

    @property
    def is_clean(self) -> bool:
        """Whether the worker has closed all of its worlds, or never had any."""
        return self.has_closed or not self.is_ready

    @property
    def state(self) -> str:
        """What the worker does while the server stops."""
        if not self.is_ready:
            return "which is starting"
        if children.is_stopped(self.pid):
            return "which a signal has stopped"
        if self._killed_because:
            return "which is killed"
        if self.has_closed:
            return "which exits"
        return "which ends its streams and closes its worlds; one may be in a step"

    @property
    def is_alive(self) -> bool:
        """Whether the worker process is running."""
        return self._process.is_alive

    def check_begun(self) -> None:
        """Wait until the worker has begun to serve.

        Raises:
          SpecError: it cannot load its environment.
          ChildProcessError: it has ended.
        """
        self.has_begun.wait()
        if self.is_ready and not self.ended:
            return
        if not self.failure:
            raise ChildProcessError(
                f"a worker process {self.ended} while starting; see its output for the reason. A "
                "script that calls `serve` needs `if __name__ == '__main__':` around its code"
            )
        raise SpecError(
            f"a worker process cannot load its environment: {self.failure}; {ADVICE}. Code "
            "defined in a notebook or at a prompt cannot be imported: write it to a file"
        )

    def look_stopped(self) -> float:
        """Return how many seconds a signal has kept the process stopped, or 0 if it is running.

        Counts the checks instead of reading the clock, because all processes might have been
        stopped together.
        """
        self._stopped_looks = self._stopped_looks + 1 if children.is_stopped(self.pid) else 0
        return self._stopped_looks * LOOK_SECONDS

    def tell_levels(self) -> None:
        """Send this process's logger levels to the worker if they have changed."""
        levels = _levels()
        if levels != self._levels:
            self._levels = levels
            with contextlib.suppress(OSError):
                send_message(self.control, "levels", levels)

    def go_on(self) -> None:
        """Let a stopped worker process continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self, because: str) -> None:
        """Kill the process, and record why, so that the report of its end can state the reason."""
        # The first reason is the cause; later ones are consequences.
        if not self._killed_because:
            self._killed_because = because
            # No longer stopped and not dead yet, it would look able to accept a stream.
            self.is_lost = True
            _log.warning("worker process %d %s and is killed", self.pid, because)
            self._process.kill()

    def reap(self) -> None:
        """Wait for the process to end, kill it if necessary, and record how it ended."""
        ended = children.how_it_ended(self._process.wait(_END_SECONDS))
        if self._killed_because:
            ended = f"{self._killed_because} and was killed"
        # A process that the worker has forked may keep the other ends of its pipes open.
        with self._handing:
            self.ended = ended
            pipes = list(self._pipes)
        for pipe in pipes:
            # Streams learn of the end here; otherwise they would wait for a process that is gone.
            pipe.shut_down()
        with self._receiving:
            self._process.close()


def _answering(asked: Properties | Share, index: int) -> MessagePipe:
    """Start a thread that answers a worker's requests, and return the other end of its pipe."""
    answers, questions = MessagePipe.pair()
    name = f"dm_env_rpc answers worker {index}"
    threading.Thread(target=answer_questions, args=(asked, answers), name=name, daemon=True).start()
    return questions


def _levels() -> Mapping[str, int]:
    return {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}
