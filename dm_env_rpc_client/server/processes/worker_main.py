"""The program of a worker process, which hosts worlds and the sessions of their streams.

The main thread executes commands from the server's own process: for example, to accept a stream's
pipe or to stop. Log records, and exceptions raised by environments, are sent to the server's own
process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import logging
import logging.handlers
import multiprocessing.process
import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any

from dm_env_rpc_client.server.activity import Counts
from dm_env_rpc_client.server.errors import ErrorLog
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.observed_session import open_session
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.processes.for_workers import AskedProperties, AskedShare
from dm_env_rpc_client.server.processes.messages import PackedError, receive_message, send_message
from dm_env_rpc_client.server.processes.worker_rows import RowsHere
from dm_env_rpc_client.server.processes.worker_streams import WorkerStreams
from dm_env_rpc_client.server.worlds.world_registry import CLOSE_SECONDS
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.message_pipe import MessagePipe

_log = logging.getLogger("dm_env_rpc_client.server")

_EXIT_SECONDS = 5.0
"""Time limit, in seconds, for a worker to end after the server's own process has ended."""


def run(
    control: MessagePipe,
    options: bytes,
    asked_properties: MessagePipe,
    asked_share: MessagePipe,
    counted: ctypes.Array[ctypes.c_int64],
    levels: Mapping[str, int],
) -> None:
    """Serve until the server's own process sends "stop" or ends.

    Args:
      control: the pipe for commands of the server's own process, and for reports to it.
      options: pickled ServeOptions.
      asked_properties: the pipe to the properties in that process.
      asked_share: the pipe to its `WorkerShare` for this process.
      counted: counters of requests, as `COUNTED`, in memory that outlives this process.
      levels: the levels of loggers, by name.
    """
    # A daemon of multiprocessing, which ends with its parent, may have no children; environments
    # may need them.
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    try:
        _set_levels(levels)
        logging.getLogger().addHandler(_SentRecords(control))
        worker = Worker(pickle.loads(options), control, asked_properties, asked_share, counted)
    except BaseException as error:
        _tell(control, "failed", f"{type(error).__name__}: {error}")
        return
    # Imported objects stay; without this, each full collection would visit them all while clients
    # wait.
    gc.collect()
    gc.freeze()
    _tell(control, "ready")
    # The pipe alone does not tell: a process forked from the parent may keep its end open.
    children.exit_with(children.Parent.from_multiprocessing(), _EXIT_SECONDS, control.shut_down)
    worker.run()


class Worker:
    """The state of a worker in its own process; see `run`."""

    def __init__(
        self,
        options: ServeOptions,
        control: MessagePipe,
        asked_properties: MessagePipe,
        asked_share: MessagePipe,
        counted: ctypes.Array[ctypes.c_int64],
    ):
        self._control = control
        self._host = Host(
            options,
            _SentErrors(control),
            AskedProperties(asked_properties),
            AskedShare(asked_share),
            Counts(counted),
        )
        self._streams = WorkerStreams(
            functools.partial(open_session, self._host, has_connection=False)
        )
        self._rows = RowsHere(self._host)

    def run(self) -> None:
        """Execute commands until "stop" is received."""
        main = self._host.main
        if main is None:
            self._run()
        else:
            # `thread="main"`: the main thread belongs to the environments, so control moves to
            # another thread.
            main.aside(self._run)

    def _run(self) -> None:
        grace = 0.0
        with contextlib.suppress(EOFError, OSError):
            while True:
                (what, *arguments), descriptor = receive_message(self._control)
                if what == "stop":
                    (grace,) = arguments
                    break
                self._obey(what, arguments, descriptor)
        deadline = time.monotonic() + grace
        self._streams.stop(deadline)
        # Streams first: rows and worlds may be in a step for one of them.
        are_closed = self._rows.close(max(deadline, time.monotonic() + CLOSE_SECONDS))
        _tell(self._control, "closed", self._host.worlds.close() and are_closed)

    def _obey(self, what: str, arguments: list[Any], descriptor: int | None) -> None:
        if what == "levels":
            _set_levels(*arguments)
            return
        adopt: Callable[..., None] = self._rows.adopt if what == "rows" else self._streams.adopt
        if descriptor is None:
            # The kernel drops descriptors that do not fit the table of this process; the client
            # sees the stream end.
            _log.warning("a stream is dropped: this process has no descriptor for it")
        else:
            adopt(descriptor, *arguments)
        _tell(self._control, "taken")


class _SentErrors(ErrorLog):
    """A log that sends exceptions to the server's own process, which stores and logs them."""

    def __init__(self, control: MessagePipe):
        super().__init__()
        self._control = control

    def add(self, error: BaseException, text: str) -> None:
        _tell(self._control, "error", PackedError.of(error), text)


class _SentRecords(logging.handlers.QueueHandler):
    """A log handler that sends records to the server's own process."""

    def __init__(self, control: MessagePipe):
        super().__init__(None)  # type: ignore[arg-type]  # `enqueue` needs no queue
        self._control = control

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a log record to the server's own process."""
        _tell(self._control, "log", record)


def _tell(control: MessagePipe, *message: Any) -> None:
    """Send a report to the server's own process, unless that process has ended."""
    with contextlib.suppress(OSError):
        send_message(control, *message)


def _set_levels(levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
