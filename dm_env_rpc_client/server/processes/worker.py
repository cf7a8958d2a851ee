"""What runs in a worker process: a listener for connections that it is handed, and their worlds.

The main thread does what the server's own process says: it adopts connections and the pipes of
forwarded streams, counts, and stops. Log records and exceptions of environments go to that process.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import logging.handlers
import multiprocessing.process
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.server.activity import Activity, Counts
from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.offered_properties import Properties
from dm_env_rpc_client.server.processes.asked_properties import AskedProperties
from dm_env_rpc_client.server.processes.board import Board, Slot
from dm_env_rpc_client.server.processes.forwarding import Forwarded, Link
from dm_env_rpc_client.server.processes.routing import RoutedStream, world_prefix
from dm_env_rpc_client.server.site import Host, Site
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.transports.http2.dial_in.greeting import Dial
from dm_env_rpc_client.transports.listeners import open_dialing, open_worker
from dm_env_rpc_client.transports.metadata import SPREADS
from dm_env_rpc_client.transports.server_streams import (
    Listener,
    Peer,
    ServerStream,
    StreamStatusError,
)
from dm_env_rpc_client.transports.tls import Tls

__all__ = ["Setup", "run"]

_log = logging.getLogger("dm_env_rpc_client.server")

_LOOK_SECONDS = 1.0
"""How often a worker compares the id of its parent process: a process that was forked from the
parent may keep the pipe open."""

_EXIT_SECONDS = 5.0
"""How long a worker may take to end after the server's own process has."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all workers are told.

    Attributes:
      site: what is hosted.
      credentials: TLS credentials; None for plaintext.
      processes: how many workers there are.
      dial: the program that they dial, instead of being given connections; None for none.
    """

    site: Site
    credentials: Tls | None
    processes: int
    dial: Dial | None = None


def run(
    setup: bytes,
    control: MessagePipe,
    questions: MessagePipe | None,
    board: Board,
    index: int,
    serial: int,
    levels: Mapping[str, int],
) -> None:
    """Serves until the server's own process says to stop, or ends.

    Args:
      setup: a pickled Setup.
      control: to the server's own process.
      questions: to its properties; None if it has none.
      board: what all processes see of one another.
      index: which worker this is.
      serial: its number among all that there ever were.
      levels: of loggers, by name.
    """
    children.leave_signals_to_parent()
    # multiprocessing ends it with its parent, but environments may have processes of their own.
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    told = _Told(control)
    try:
        _set_levels(levels)
        logging.getLogger().addHandler(_ToldRecords(told))
        worker = _Worker(pickle.loads(setup), told, questions, board, index, serial)
    except BaseException as error:
        told.say("failed", f"{type(error).__name__}: {error}")
        return
    # What was imported stays. The collector would go through all of it, while clients wait.
    gc.collect()
    gc.freeze()
    told.say("ready")
    worker.run(control)


class _Told:
    """Tells the server's own process; it is not there any more if that fails."""

    def __init__(self, control: MessagePipe):
        self._control = control

    def say(self, *message: Any, descriptor: int | None = None) -> None:
        try:
            self._control.send(pickle.dumps(message), descriptor=descriptor)
        except OSError:
            pass  # This process ends soon.


class _Worker:
    def __init__(
        self,
        setup: Setup,
        told: _Told,
        questions: MessagePipe | None,
        board: Board,
        index: int,
        serial: int,
    ):
        self._site = setup.site
        self._told = told
        self._slot = Slot(board, index)
        properties = Properties() if questions is None else AskedProperties(questions)
        counts = Counts(board.counted(index))
        errors, prefix = _ToldErrors(told, counts), world_prefix(serial)
        self._host = Host(setup.site, errors, properties, None, self._slot, prefix, counts)
        forwarded = Activity(counts, has_clients=False)
        self._forwarded = Forwarded(lambda peer: self._host.open_session(peer, forwarded))
        admitting = self._host.admitting(self._open_stream)
        limited = (
            setup.site.max_connections,
            setup.site.limits.message_bytes,
            answer_memory,
            self._host.activity.refused_stream,
            setup.processes,
        )
        self._listener: Listener
        self._take: Callable[[int, Callable[[], None]], None]
        if setup.dial is None:
            listener = open_worker(admitting, setup.credentials, *limited)
            self._listener, self._take = listener, listener.adopt
        else:
            own = setup.dial.of_worker(index, setup.processes)
            self._listener, self._take = open_dialing(admitting, own, *limited), _close

    def run(self, control: MessagePipe) -> None:
        """Does what it is told, until it is told to stop."""
        parent = os.getppid()
        grace = 0.0
        try:
            while True:
                while not control.wait(_LOOK_SECONDS):
                    if os.getppid() != parent:
                        raise EOFError
                received = control.receive()
                what, *arguments = pickle.loads(received.message)
                if what == "stop":
                    (grace,) = arguments
                    break
                try:
                    self._obey(what, arguments, received.descriptor)
                except OSError:
                    _log.exception("what the server's own process said cannot be done")
        except (EOFError, OSError):
            _exit_in(_EXIT_SECONDS)
        deadline = time.monotonic() + grace
        self._listener.stop(grace)
        self._forwarded.stop(deadline)
        are_closed = self._host.worlds.close()
        self._told.say("closed", are_closed)

    def _obey(self, what: str, arguments: list[Any], descriptor: int | None) -> None:
        if what == "levels":
            _set_levels(*arguments)
        else:
            self._adopt(what, arguments, descriptor)

    def _adopt(self, what: str, arguments: list[Any], descriptor: int | None) -> None:
        if descriptor is None:
            _log.warning("a connection is dropped: this process has no descriptor for it")
            if what == "client":
                self._taken()
        elif what == "client":
            self._take(descriptor, self._taken)
        else:
            assert what == "link"
            self._forwarded.adopt(descriptor, *arguments)

    def _taken(self) -> None:
        self._slot.add("adopted", 1)

    def _open_stream(self, peer: Peer) -> ServerStream:
        slot, most = self._slot, self._site.max_connections
        # Told to other workers before theirs are looked at, as for worlds.
        slot.add("streams", 1)
        if slot.board.total("streams") > most:
            slot.add("streams", -1)
            text = f"the server has reached its limit of {most} streams"
            self._host.activity.refused_stream(peer.address, f"RESOURCE_EXHAUSTED: {text}")
            raise StreamStatusError("RESOURCE_EXHAUSTED", text)
        slot.add("fresh", 1)
        slot.add("opened", 1)
        return RoutedStream(
            self._host.open_session(peer),
            slot,
            lambda serial: self._connect(serial, peer),
            self._site.limits,
            SPREADS in peer.metadata,
        )

    def _connect(self, serial: int, peer: Peer) -> Link:
        mine, other = MessagePipe.pair()
        self._told.say("link", serial, peer, descriptor=other.fileno())
        other.close()
        return Link(mine)


class _ToldErrors(ErrorLog):
    """Sends exceptions to the server's own process, which keeps and logs them."""

    def __init__(self, told: _Told, counts: Counts):
        super().__init__()
        self._told = told
        self._counts = counts

    def add(self, error: BaseException, text: str) -> None:
        """See `ErrorLog.add`."""
        self._counts.add("errors")
        where = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        shown = f"{type(error).__name__}: {error}"
        try:
            pickled = pickle.dumps(error)
        except Exception:
            pickled = pickle.dumps(RuntimeError(shown))
        self._told.say("error", pickled, shown, where, text)


class _ToldRecords(logging.handlers.QueueHandler):
    """Sends log records to the server's own process."""

    def __init__(self, told: _Told):
        super().__init__(None)  # type: ignore[arg-type]  # `enqueue` needs no queue
        self._told = told

    def enqueue(self, record: logging.LogRecord) -> None:
        """Sends a record."""
        self._told.say("log", record)


def _close(descriptor: int, taken: Callable[[], None]) -> None:
    os.close(descriptor)
    taken()


def _set_levels(levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _exit_in(seconds: float) -> None:
    def exit_then() -> None:
        time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=exit_then, name="dm_env_rpc exits", daemon=True).start()
