"""What runs in a worker process: a listener for connections that it is handed, and their worlds.

The main thread does what the server's own process says: it adopts connections and the pipes of
forwarded streams, counts, and stops. Log records and exceptions of environments go to that process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import logging.handlers
import multiprocessing.process
import pickle
import time
import traceback
from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client.server.activity import Counts
from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.observed_session import open_session
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.processes.asked_properties import AskedProperties
from dm_env_rpc_client.server.processes.board import Board, Slot
from dm_env_rpc_client.server.processes.forwarding import Forwarded, Link
from dm_env_rpc_client.server.processes.messages import hear, say
from dm_env_rpc_client.server.processes.routing import RoutedStream, world_prefix
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.tensors.limits import described
from dm_env_rpc_client.transports.credentials import Tls
from dm_env_rpc_client.transports.listeners import open_worker
from dm_env_rpc_client.transports.metadata import SPREADS
from dm_env_rpc_client.transports.server_streams import Peer, ServerStream, full_error

_log = logging.getLogger("dm_env_rpc_client.server")

_EXIT_SECONDS = 5.0
"""How long a worker may take to end after the server's own process has."""


def run(
    control: MessagePipe,
    options: bytes,
    questions: MessagePipe,
    board: Board,
    index: int,
    serial: int,
    levels: Mapping[str, int],
) -> None:
    """Serves until the server's own process says to stop, or ends.

    Args:
      control: to the server's own process.
      options: pickled ServeOptions.
      questions: to its properties.
      board: what all processes see of one another.
      index: which worker this is.
      serial: its number among all that there ever were.
      levels: of loggers, by name.
    """
    # multiprocessing ends it with its parent, but environments may have processes of their own.
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    try:
        _set_levels(levels)
        logging.getLogger().addHandler(_SentRecords(control))
        worker = Worker(pickle.loads(options), control, questions, board, index, serial)
    except BaseException as error:
        _tell(control, "failed", f"{type(error).__name__}: {error}")
        return
    # What was imported stays. The collector would go through all of it, while clients wait.
    gc.collect()
    gc.freeze()
    _tell(control, "ready")
    # Its parent's end of the pipe may be kept open by a process that was forked from the parent.
    children.exit_with(children.Parent.from_multiprocessing(), _EXIT_SECONDS, control.shut_down)
    worker.run()


class Worker:
    """A worker, in its process; see `run`."""

    def __init__(
        self,
        options: ServeOptions,
        control: MessagePipe,
        questions: MessagePipe,
        board: Board,
        index: int,
        serial: int,
    ):
        assert options.processes is not None
        self._control = control
        self._slot = Slot(board, index)
        counts = Counts(self._slot.row.counted)
        self._host = Host(
            options,
            _SentErrors(control, counts),
            AskedProperties(questions),
            self._slot,
            world_prefix(serial),
            counts,
        )
        self._forwarded = Forwarded(
            functools.partial(open_session, self._host, has_connection=False)
        )
        served = self._host.listener_options(self._open_stream)
        assert options.credentials is None or isinstance(options.credentials, Tls)
        self._listener = open_worker(served, options.credentials)

    def run(self) -> None:
        """Does what it is told, until it is told to stop."""
        main = self._host.main
        if main is None:
            self._run()
        else:
            main.aside(self._run)

    def _run(self) -> None:
        grace = 0.0
        with contextlib.suppress(EOFError, OSError):
            while True:
                (what, *arguments), descriptor = hear(self._control)
                if what == "stop":
                    (grace,) = arguments
                    break
                try:
                    self._obey(what, arguments, descriptor)
                except OSError:
                    _log.exception("what the server's own process said cannot be done")
        deadline = time.monotonic() + grace
        self._listener.stop(grace)
        self._forwarded.stop(deadline)
        _tell(self._control, "closed", self._host.worlds.close())

    def _obey(self, what: str, arguments: list[Any], descriptor: int | None) -> None:
        if what == "levels":
            _set_levels(*arguments)
        elif descriptor is None:
            _log.warning("a connection is dropped: this process has no descriptor for it")
            if what == "client":
                self._taken()
        elif what == "client":
            self._listener.adopt(descriptor, self._taken)
        else:
            assert what == "link"
            self._forwarded.adopt(descriptor, *arguments)

    def _taken(self) -> None:
        self._slot.add("adopted", 1)

    def _open_stream(self, peer: Peer) -> ServerStream:
        slot, options = self._slot, self._host.options
        # Told to other workers before theirs are looked at, as for worlds.
        slot.add("streams", 1)
        if slot.total("streams") > options.max_connections:
            slot.add("streams", -1)
            refusal = full_error(options.max_connections)
            self._host.activity.refused_stream(peer.address, f"{refusal.code}: {refusal}")
            raise refusal
        slot.add("fresh", 1)
        slot.add("opened", 1)
        return RoutedStream(
            open_session(self._host, peer),
            slot,
            lambda serial: self._connect(serial, peer),
            options.limits,
            SPREADS in peer.metadata,
        )

    def _connect(self, serial: int, peer: Peer) -> Link:
        mine, other = MessagePipe.pair()
        _tell(self._control, "link", serial, peer, descriptor=other.fileno())
        other.close()
        return Link(mine)


class _SentErrors(ErrorLog):
    """Sends exceptions to the server's own process, which keeps and logs them."""

    def __init__(self, control: MessagePipe, counts: Counts):
        super().__init__()
        self._control = control
        self._counts = counts

    def add(self, error: BaseException, text: str) -> None:
        self._counts.add("errors")
        where = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        shown = described(error)
        try:
            pickled = pickle.dumps(error)
        except Exception:
            pickled = pickle.dumps(RuntimeError(shown))
        _tell(self._control, "error", pickled, shown, where, text)


class _SentRecords(logging.handlers.QueueHandler):
    """Sends log records to the server's own process."""

    def __init__(self, control: MessagePipe):
        super().__init__(None)  # type: ignore[arg-type]  # `enqueue` needs no queue
        self._control = control

    def enqueue(self, record: logging.LogRecord) -> None:
        """Sends a record."""
        _tell(self._control, "log", record)


def _tell(control: MessagePipe, *message: Any, descriptor: int | None = None) -> None:
    """Tells the server's own process; this one ends soon if that is gone."""
    with contextlib.suppress(OSError):
        say(control, *message, descriptor=descriptor)


def _set_levels(levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
