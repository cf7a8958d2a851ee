"""All workers as the server's own process sees them: started, given connections, replaced, ended.

One thread accepts connections and hands them out; one for each worker hears what it says, kills it
if it must, and replaces it when it has ended. No other thread touches the process of a worker.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing.util
import operator
import os
import pickle
import threading
import time
import weakref
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.activity import ERRORS, ServerStats, added_up
from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.processes.board import Board
from dm_env_rpc_client.server.processes.messages import say
from dm_env_rpc_client.server.processes.worker_process import ADVICE, LOOK_SECONDS, WorkerProcess
from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.waiting import InterruptibleCondition, InterruptibleEvent
from dm_env_rpc_client.transports.net.listening import Acceptor
from dm_env_rpc_client.transports.server_streams import Peer

_log = logging.getLogger("dm_env_rpc_client.server")

_STOPPED_SECONDS = 10.0
"""How long a worker may be stopped by SIGSTOP before it is killed. One that computes is never."""

_ERRORS_SECONDS = 1.0
"""How long a worker may take to tell of an error that it has counted; it may be stopped."""

_STOP_SECONDS = 10.0
"""How long a worker may take to end beyond the grace."""

_END_SECONDS = 10.0
"""How long threads may take to notice the end of their workers."""

_MAX_DELAY_SECONDS = 5.0
"""Between attempts to start a worker that ends while it starts."""

_MAX_UNADOPTED = 64
"""Connections that a worker was handed and has not taken; then others get them."""

_WAIT_SECONDS = 0.02


class _RaisedInWorkerError(Exception):
    """The cause of an exception that came from a worker: its traceback there, as text."""


class Workers:
    """The worker processes of a server, and the address that they share.

    Args:
      options: how to serve.
      properties: those that all clients have.

    Attributes:
      address: where it listens, with the port that it got.

    Raises:
      SpecError: something in `options` cannot be given to another process.
      ChildProcessError: a worker ended while it started.
      OSError: the address is taken, or does not belong to this machine.
    """

    def __init__(self, options: ServeOptions, properties: Properties):
        assert options.processes is not None
        self._options = _pickled(options)
        self._properties = properties
        self._pid = os.getpid()
        self._error_log = ErrorLog()
        self._board = Board(options.processes)
        self._serials = itertools.count(1)
        self._began = time.monotonic()
        # Protects the next, and counting errors together with keeping them.
        self._hearing = make_lock()
        self._heard_errors = [0] * options.processes
        self._heard = InterruptibleCondition()
        self._last = 0
        # Protects `_workers`, and that none is started when all are to stop.
        self._lock = make_lock()
        # Protects that nothing is counted as handed to a worker that the board has forgotten.
        self._handing = make_lock()
        self._stop_by = 0.0
        self._is_serving = False
        self._stopping = threading.Event()
        self._stopped = InterruptibleEvent()
        self._workers: dict[int, WorkerProcess] = {}
        self._threads: list[threading.Thread] = []
        self._acceptor: Any = None
        # Before multiprocessing waits for its processes, at the exit, to end by SIGTERM.
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
            for worker in list(self._workers.values()):
                worker.check_begun()
            self._is_serving = True
            self._acceptor = Acceptor(options.address, self._hand_over)
            self.address: str = self._acceptor.address
        except BaseException:
            self.stop(0.0)
            raise

    @property
    def errors(self) -> list[BaseException]:
        """The last errors of all workers and of this process, oldest first."""
        counted = [row.counted[ERRORS] for row in self._board.rows]
        # Workers count an error before they tell it.
        self._heard.wait_for(
            lambda: all(map(operator.ge, self._heard_errors, counted)), _ERRORS_SECONDS
        )
        return self._error_log.kept

    def stats(self) -> ServerStats:
        """Returns what all workers have done, and what there is now."""
        rows, total = self._board.rows, self._board.total
        with self._hearing:
            untold = sum(row.counted[ERRORS] for row in rows) - sum(self._heard_errors)
            errors = self._error_log.count + untold
        return added_up(
            [row.counted for row in rows],
            self._began,
            total("streams"),
            total("worlds"),
            total("agents"),
            errors,
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the workers have stopped; returns whether they have."""
        return self._stopped.wait(timeout)

    def stop(self, grace: float) -> bool:
        """Ends all workers; returns when they have ended, as `Server.stop`."""
        if os.getpid() != self._pid:
            return True  # A forked child has no workers.
        self._begin_to_stop(grace)
        if self._acceptor is not None:
            self._acceptor.close()
        for worker in list(self._workers.values()):
            with contextlib.suppress(OSError):
                say(worker.control, "stop", grace)
        self._join(self._stop_by + _STOP_SECONDS + _END_SECONDS)
        self._stopped.set()
        return all(worker.is_clean for worker in self._workers.values())

    def abort(self) -> None:
        """Has all workers end, without waiting."""
        if os.getpid() != self._pid:
            return
        self._begin_to_stop(0.0)
        if self._acceptor is not None:
            self._acceptor.close_soon()
        for worker in list(self._workers.values()):
            worker.control.shut_down()
        self._stopped.set()

    def abort_and_wait(self) -> None:
        """Has all workers end, and waits for it, at the exit of the interpreter."""
        if os.getpid() == self._pid:
            self.abort()
            self._join(time.monotonic() + _END_SECONDS)

    def _join(self, deadline: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _begin_to_stop(self, grace: float) -> None:
        with self._lock:
            self._stop_by = time.monotonic() + grace
            self._stopping.set()

    # Connections.

    def _hand_over(self, descriptor: int) -> None:
        """Hands a connection to the worker with the fewest worlds; waits if there is none."""
        while not self._stopping.is_set():
            with self._handing:
                worker = self._next_worker()
                if worker is not None:
                    worker.row.hand()
            if worker is None:
                self._stopping.wait(_WAIT_SECONDS)
                continue
            try:
                say(worker.control, "client", descriptor=descriptor)
            except OSError:
                worker.is_lost = True  # It has ended, which its thread notices soon.
            else:
                self._last = worker.index
                return

    def _next_worker(self) -> WorkerProcess | None:
        def order(worker: WorkerProcess) -> tuple[bool, int, int]:
            turn = (worker.index - self._last - 1) % len(self._board.rows)
            return worker.row.is_behind, worker.row.load, turn

        able = [
            self._workers[index]
            for index, row in self._board.ready().items()
            if not self._workers[index].is_lost and row.handed - row.adopted < _MAX_UNADOPTED
        ]
        able.sort(key=order)
        return next((worker for worker in able if not children.is_stopped(worker.pid)), None)

    # Each worker has a thread that does this.

    def _supervise(self, worker: WorkerProcess) -> None:
        """Hears a worker, and starts another when it has ended."""
        delay = 0.0
        while True:
            self._hear(worker)
            self._forget(worker)
            if not self._is_serving:
                return
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
                raise RuntimeError("the server stops")
            worker = self._workers[index] = WorkerProcess(
                self._options, self._properties, self._board, index, next(self._serials)
            )
        return worker

    def _hear(self, worker: WorkerProcess) -> None:
        """Does what a worker says, until it has ended."""
        next_look = 0.0
        with contextlib.suppress(EOFError, OSError):
            while True:
                if worker.control.wait(LOOK_SECONDS):
                    received = worker.control.receive()
                    try:
                        self._take(worker, pickle.loads(received.message), received.descriptor)
                    except Exception:
                        _log.exception("what a worker process said cannot be taken")
                is_due = time.monotonic() >= next_look
                if is_due:
                    # What it has started may keep its end of the pipe open.
                    if not worker.is_alive:
                        return
                    self._look(worker)
                next_look = time.monotonic() + LOOK_SECONDS if is_due else next_look

    def _look(self, worker: WorkerProcess) -> None:
        """Kills a worker that a signal has stopped for long, or that does not stop in time."""
        stopped = worker.look_stopped()
        worker.row.is_stopped = int(stopped > 0)
        if not self._stopping.is_set():
            if stopped >= _STOPPED_SECONDS:
                worker.kill(f"was stopped by a signal for {stopped:g} s")
            elif not stopped:
                worker.tell_levels()
        elif stopped and time.monotonic() < self._stop_by:
            worker.go_on()  # So that it can close its worlds.
        elif stopped or time.monotonic() > self._stop_by + _STOP_SECONDS:
            worker.kill("did not stop in time")

    def _take(
        self, worker: WorkerProcess, message: tuple[Any, ...], descriptor: int | None
    ) -> None:
        what, *arguments = message
        if what == "ready":
            worker.is_ready = True
            worker.row.serial = worker.serial
            worker.has_begun.set()
        elif what == "failed":
            (worker.failure,) = arguments
        elif what == "closed":
            (worker.has_closed,) = arguments
        elif what == "error":
            self._have_error(worker.index, *arguments)
        elif what == "log":
            _log_here(*arguments)
        else:
            assert what == "link"
            assert descriptor is not None
            self._pass_on(descriptor, *arguments)

    def _forget(self, worker: WorkerProcess) -> None:
        """Forgets a worker that has ended."""
        lost = worker.row.worlds
        with self._handing:
            worker.is_lost = True
            worker.row.clear()
        with self._hearing:  # One that was killed may have counted an error and not told it.
            self._heard_errors[worker.index] = worker.row.counted[ERRORS]
        self._heard.notify_all()
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

    def _pass_on(self, descriptor: int, serial: int, peer: Peer) -> None:
        """Gives the other end of a pipe to the worker that it is for, if that is there."""
        try:
            workers = list(self._workers.values())
            for worker in (each for each in workers if each.serial == serial):
                with contextlib.suppress(OSError):
                    say(worker.control, "link", peer, descriptor=descriptor)
        finally:
            os.close(descriptor)

    def _have_error(self, index: int, pickled: bytes, shown: str, where: str, text: str) -> None:
        try:
            error = pickle.loads(pickled)
        except Exception:
            error = RuntimeError(shown)  # Its class is known to the worker only.
        error.__cause__ = _RaisedInWorkerError(f"in a worker process:\n{where}")
        with self._hearing:
            self._error_log.add(error, text)
            self._heard_errors[index] += 1
        self._heard.notify_all()


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
                f"{name} cannot be given to worker processes: "
                f"{type(error).__name__}: {error}; {ADVICE}"
            ) from error
    return pickle.dumps(options)
