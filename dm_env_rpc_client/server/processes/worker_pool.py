"""The pool that starts, replaces and ends the workers, and connects client streams to them.

For each worker, one thread receives messages from the worker, kills it if necessary, and replaces
it when it has ended. No other thread waits for or reaps a worker process.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import logging
import multiprocessing
import multiprocessing.util
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.batches import NUM_ENVS
from dm_env_rpc_client.server.activity import COUNTED, Activity, ServerStats
from dm_env_rpc_client.server.construction import takes_rows
from dm_env_rpc_client.server.errors import ErrorLog
from dm_env_rpc_client.server.host import Host, listener_options
from dm_env_rpc_client.server.observed_session import open_session
from dm_env_rpc_client.server.options import ANYWHERE, UNNAMED, ServeOptions
from dm_env_rpc_client.server.processes.messages import send_message
from dm_env_rpc_client.server.processes.registry import Registry, WorkerShare
from dm_env_rpc_client.server.processes.spread_batch import RowPlaces, SpreadBatches
from dm_env_rpc_client.server.processes.streams import (
    Link,
    LinkHere,
    PassedStream,
    Places,
    WorkerGoneError,
)
from dm_env_rpc_client.server.processes.worker_handle import ADVICE, LOOK_SECONDS, WorkerProcess
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.single_instance import Instance
from dm_env_rpc_client.server.worlds.making import ENVIRONMENT
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.waiting import InterruptibleEvent
from dm_env_rpc_client.transports.listeners import open_listener
from dm_env_rpc_client.transports.server_streams import (
    Listener,
    Peer,
    ServerStream,
    StreamStatusError,
)

_log = logging.getLogger("dm_env_rpc_client.server")

_STOPPED_SECONDS = 10.0
"""Time, in seconds, after which a worker stopped by SIGSTOP is killed. A worker is never killed
merely for being busy computing."""

_STOP_SECONDS = 10.0
"""Time limit, in seconds, for a worker to end after the grace period."""

_END_SECONDS = 10.0
"""Time limit, in seconds, for supervising threads to notice that their workers have ended."""

_MAX_DELAY_SECONDS = 5.0
"""Longest pause, in seconds, between attempts to start a worker that ends while starting."""

_WAIT_SECONDS = 0.02

_OF_CLIENTS: Mapping[str, Any] = {
    "address": ANYWHERE, "credentials": None, "token": None, "transport": "auto"
}  # fmt: skip
"""Options that concern clients but not workers."""


class Workers(Places, RowPlaces):
    """The worker processes of a server, and the listener in front of them.

    Args:
      options: how to serve.
      properties: the properties that all clients have.

    Attributes:
      address: the address of the listener, with its actual port.

    Raises:
      SpecError: something in `options` cannot be sent to another process.
      ChildProcessError: a worker ended while it started.
      OSError: the address is taken, or does not belong to this machine.
    """

    def __init__(self, options: ServeOptions, properties: Properties):
        assert options.processes is not None
        self._options = _pickled(options)
        self._limits = options.limits
        self._properties = properties
        self._pid = os.getpid()
        self._error_log = ErrorLog()
        self._activity = Activity()
        self._registry = Registry()
        new_counts = multiprocessing.get_context("spawn").RawArray
        self._names = list(options.hosted)
        self._batches = {
            name: SpreadBatches(self, name)
            for name, factory in options.factories().items()
            if not isinstance(factory, Instance) and not takes_rows(factory)
        }
        self._share = self._registry.new_share()
        self._host = Host(
            _of_batches(options, self._batches),
            self._error_log,
            properties,
            self._share,
            self._activity.counts,
        )
        self._counted = [new_counts(ctypes.c_int64, len(COUNTED)) for _ in range(options.processes)]
        self._serials = itertools.count(1)
        # Held while a worker starts.
        self._lock = make_lock()
        self._stop_by = 0.0
        self._is_serving = False
        self._stopping = threading.Event()
        self._stopped = InterruptibleEvent()
        self._workers: dict[int, WorkerProcess] = {}
        self._threads: list[threading.Thread] = []
        self._listener: Listener | None = None
        # At exit, workers end before multiprocessing sends them SIGTERM, which they ignore, and
        # waits for them.
        multiprocessing.util.Finalize(self, _end_at_exit, (weakref.ref(self),), exitpriority=0)
        try:
            for index in range(options.processes):
                thread = threading.Thread(
                    target=self._supervise,
                    args=(self._start(index),),
                    name=f"dm_env_rpc supervises worker {index}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
            # `list` copies in one step of the interpreter: the supervising threads replace workers
            # meanwhile.
            for worker in list(self._workers.values()):
                worker.check_begun()
            self._is_serving = True
            # The listener is opened last: an admitted client finds all workers ready.
            self._listener = open_listener(
                listener_options(options, self._activity, self._open_stream),
                options.address,
                options.credentials,
                options.transport,
            )
            self.address = self._listener.address
        except BaseException:
            self.stop(0.0)
            raise

    @property
    def errors(self) -> list[BaseException]:
        """The most recent errors of all workers and of this process, oldest first."""
        # Errors are sent before the answer of their request, so a client that has its answer finds
        # them here.
        self._hear_all()
        return self._error_log.kept

    def stats(self) -> ServerStats:
        """Return the activity of all workers and their current state."""
        self._hear_all()
        total = self._registry.total
        errors = self._error_log.count
        return self._activity.stats(total("worlds"), total("agents"), errors, self._counted)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the workers stop or `timeout` expires; return whether they have stopped."""
        return self._stopped.wait(timeout)

    def stop(self, grace: float) -> bool:
        """End all workers, wait until they have ended, and return what `Server.stop` returns."""
        if os.getpid() != self._pid:
            return True  # A forked child has no workers.
        self._begin_to_stop(grace)
        # The listener stops before the workers: a stream placed in a stopping worker would be lost.
        if self._listener is not None:
            self._listener.stop(grace)
        are_closed = self._host.worlds.close()
        left = max(0.0, self._stop_by - time.monotonic())
        for worker in list(self._workers.values()):
            with contextlib.suppress(OSError):
                send_message(worker.control, "stop", left)
        self._join(self._stop_by + _STOP_SECONDS + _END_SECONDS)
        for worker in list(self._workers.values()):
            # Ends the wait for the rest of a message whose sender is stopped: the thread that waits
            # would otherwise not kill it, and the interpreter would wait for it at exit.
            worker.control.shut_down()
        self._join(time.monotonic() + _END_SECONDS)
        self._stopped.set()
        return are_closed and all(
            worker.is_clean and worker.ended for worker in list(self._workers.values())
        )

    def awaited(self) -> str:
        """Return what `stop` waits for."""
        if self._listener is not None and not self._listener.wait(0.0):
            return f"{self._activity.streams} streams to end"
        running = [worker for worker in list(self._workers.values()) if not worker.ended]
        return "; ".join(f"worker process {worker.pid}, {worker.state}" for worker in running)

    def abort(self) -> None:
        """End all workers without waiting for them."""
        if os.getpid() != self._pid:
            return
        self._begin_to_stop(0.0)
        if self._listener is not None:
            self._listener.abort()
        self._host.worlds.abandon()
        for worker in list(self._workers.values()):
            # A worker stops by itself when its pipe is closed.
            worker.control.shut_down()
        self._stopped.set()

    def abort_and_wait(self) -> None:
        """When the interpreter exits, end all workers and wait for them."""
        if os.getpid() == self._pid:
            self.abort()
            self._join(time.monotonic() + _END_SECONDS)

    def _join(self, deadline: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _begin_to_stop(self, grace: float) -> None:
        # Without the lock: a worker may take long to start. `_start` looks afterwards.
        self._stop_by = time.monotonic() + grace
        self._stopping.set()

    # Streams.

    def _open_stream(self, peer: Peer) -> ServerStream:
        self._activity.opened(peer.address)
        ended = functools.partial(self._activity.ended, peer.address)
        return PassedStream(self, peer, self._limits, ended)

    def place(self, is_gone: Callable[[], bool]) -> WorkerShare:
        while not is_gone():
            placed = self._registry.place([worker.share for worker in self._prompt()])
            if placed is not None:
                return placed
            # The client waits, since a worker that is being replaced is back within moments.
            if self._stopping.wait(_WAIT_SECONDS):
                break
        raise _stopped()

    def _prompt(self) -> list[WorkerProcess]:
        """Return the workers that can accept streams, including slow ones only if all are slow."""
        # A computing worker cannot be told from one whose GIL a C library holds, so a worker that
        # is behind is passed over, never killed.
        able = [worker for worker in list(self._workers.values()) if worker.is_able]
        return [worker for worker in able if not worker.is_behind] or able

    def was_not_created(self, share: WorkerShare) -> None:
        self._registry.was_not_created(share)

    def here_for(self, request: dm_env_rpc_pb2.CreateWorldRequest) -> WorkerShare | None:
        settings, chosen = request.settings, self._names
        # An unnamed environment is the only one, so the setting "environment" is its own.
        if UNNAMED not in chosen and ENVIRONMENT in settings:
            chosen = list(settings[ENVIRONMENT].strings.array)
        batches = self._batches.get(chosen[0]) if len(chosen) == 1 else None
        is_spread = NUM_ENVS in settings and batches is not None and not batches.are_whole
        return self._share if is_spread else None

    def is_here(self, share: WorkerShare) -> bool:
        return share is self._share

    def of(self, name: str) -> WorkerShare | None:
        return self._registry.of(name)

    def connect(self, share: WorkerShare, peer: Peer) -> Link:
        if share is self._share:
            return LinkHere(open_session(self._host, peer, has_connection=False), share)
        for worker in list(self._workers.values()):
            if worker.share is share:
                with contextlib.suppress(OSError):
                    return Link(worker.connect("stream", peer), share)
        raise WorkerGoneError(may_have_begun=False)

    def lost(self, share: WorkerShare) -> None:
        self._registry.lose(share)
        for worker in list(self._workers.values()):
            if worker.share is share:
                worker.is_lost = True

    # Rows of batches.

    def spread(self, most: int) -> list[int]:
        while True:
            among = {worker.share: worker.index for worker in self._prompt()}
            placed: list[int] = []
            # Distinct workers, at most one part each: two parts of a batch in one process would
            # take turns.
            while among and len(placed) < most:
                share = self._registry.place(list(among))
                assert share is not None
                placed.append(among.pop(share))
            if placed:
                return placed
            if self._stopping.wait(_WAIT_SECONDS):
                raise _stopped()

    def open_rows(self, number: int) -> tuple[MessagePipe, WorkerShare]:
        worker = self._workers[number]
        return worker.connect("rows"), worker.share

    def wait_replaced(self, number: int, share: WorkerShare) -> None:
        while True:
            worker = self._workers[number]
            if worker.share is not share:
                if worker.is_able:
                    self._registry.place([worker.share])
                    return
                # A replacement that ends while it starts would end again; the batch fails with the
                # reason.
                if worker.ended and not worker.is_ready:
                    raise ChildProcessError(
                        f"the replacement worker process {worker.ended} while starting"
                    )
            if self._stopping.wait(_WAIT_SECONDS):
                raise ChildProcessError("the server was stopped")

    def gone(self, share: WorkerShare) -> None:
        self._registry.was_not_created(share)

    def _hear_all(self) -> None:
        """Process the pending messages of all workers. Workers send errors before answers."""
        for worker in list(self._workers.values()):
            with contextlib.suppress(EOFError, OSError):
                worker.receive(self._take)

    # The supervising thread of each worker runs the methods below.

    def _supervise(self, worker: WorkerProcess) -> None:
        """Receive the messages of a worker, and start a replacement when the worker has ended."""
        delay = 0.0
        while True:
            self._hear(worker)
            self._forget(worker)
            if not self._is_serving:
                return
            # A worker that ends while it starts, as with a broken import, would otherwise be
            # started in a busy loop.
            delay = 0.0 if worker.is_ready else min(_MAX_DELAY_SECONDS, 2 * delay + 0.1)
            ended = worker
            while worker is ended:
                if self._stopping.wait(delay):
                    return
                try:
                    worker = self._start(worker.index)
                except Exception:
                    if not self._stopping.is_set():
                        _log.exception("a worker process could not be started")
                    delay = _MAX_DELAY_SECONDS

    def _start(self, index: int) -> WorkerProcess:
        with self._lock:
            if self._stopping.is_set():
                raise RuntimeError("the server is stopping")
            worker = self._workers[index] = WorkerProcess(
                self._options,
                self._properties,
                self._registry.new_share(),
                self._counted[index],
                index,
                next(self._serials),
            )
        return worker

    def _hear(self, worker: WorkerProcess) -> None:
        """Handle the messages of a worker until it ends."""
        next_look = 0.0
        with contextlib.suppress(EOFError, OSError):
            while True:
                if worker.control.wait(LOOK_SECONDS):
                    worker.receive(self._take)
                is_due = time.monotonic() >= next_look
                if is_due:
                    # A process that the worker has started may keep its end of the pipe open.
                    if not worker.is_alive:
                        return
                    self._look(worker)
                next_look = time.monotonic() + LOOK_SECONDS if is_due else next_look

    def _look(self, worker: WorkerProcess) -> None:
        """Kill a worker that a signal has stopped for too long or that missed its deadline."""
        stopped = worker.look_stopped()
        if not self._stopping.is_set():
            if stopped >= _STOPPED_SECONDS:
                worker.kill(f"was stopped by a signal for {stopped:g} s")
            elif not stopped:
                worker.tell_levels()
        elif not worker.is_ready:
            worker.kill("was still starting")  # It has no worlds.
        elif stopped and time.monotonic() < self._stop_by:
            worker.go_on()  # So that it can close its worlds.
        elif stopped or time.monotonic() > self._stop_by + _STOP_SECONDS:
            worker.kill("did not stop in time")

    def _take(self, worker: WorkerProcess, message: tuple[Any, ...]) -> None:
        what, *arguments = message
        if what == "ready":
            worker.is_ready = True
            worker.has_begun.set()
        elif what == "failed":
            (worker.failure,) = arguments
        elif what == "closed":
            (worker.has_closed,) = arguments
        elif what == "taken":
            worker.taken()
        elif what == "error":
            packed, text = arguments
            self._error_log.add(packed.unpacked(), text)
        else:
            assert what == "log"
            _log_here(*arguments)

    def _forget(self, worker: WorkerProcess) -> None:
        """Forget and reap a worker that has ended, and report its end."""
        lost = worker.share.own("worlds")
        self.lost(worker.share)
        worker.reap()
        stops = self._stopping.is_set()
        if self._is_serving and not (stops and worker.is_clean):
            if stops:
                what, then = "not all of its worlds are closed", "the server stops"
            elif worker.is_ready:
                what, then = f"its {lost} worlds are lost", "it is replaced"
            else:
                what, then = worker.failure or "at start", "it is replaced"
            text = f"worker process {worker.pid} {worker.ended}, {what}; {then}"
            self._error_log.add(ChildProcessError(text), text)
        worker.has_begun.set()


def _stopped() -> StreamStatusError:
    return StreamStatusError("UNAVAILABLE", "the server was stopped")


def _of_batches(options: ServeOptions, batches: Mapping[str, SpreadBatches]) -> ServeOptions:
    """Return the options for batches in the server's own process, with a thread for each batch."""
    return dataclasses.replace(
        options, environment=batches, processes=None, threads="world", thread=None, **_OF_CLIENTS
    )


def _end_at_exit(workers: weakref.ref[Workers]) -> None:
    found = workers()
    if found is not None:
        found.abort_and_wait()


def _log_here(record: logging.LogRecord) -> None:
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _pickled(options: ServeOptions) -> bytes:
    parts: dict[str, Any] = {
        **{
            f"environment {name!r}" if name else "environment": hosted
            for name, hosted in options.hosted.items()
        },
        "default_actions": options.default_actions,
        "extensions": options.extensions,
    }
    for name, part in parts.items():
        try:
            pickle.dumps(part)
        except Exception as error:
            raise SpecError(
                f"{name} cannot be sent to worker processes: "
                f"{type(error).__name__}: {error}; {ADVICE}"
            ) from error
    return pickle.dumps(dataclasses.replace(options, **_OF_CLIENTS))
