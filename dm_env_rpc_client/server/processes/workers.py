"""The workers as the server's own process sees them: started, given connections, replaced, ended.

One thread accepts connections and hands them out; one for each worker hears what it says, kills it
if it must, and replaces it when it has ended. No other thread touches the process of a worker.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import multiprocessing.util
import operator
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.activity import ERRORS, ServerStats, added_up
from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.offered_properties import Properties
from dm_env_rpc_client.server.processes import worker as in_worker
from dm_env_rpc_client.server.processes.asked_properties import answer_questions
from dm_env_rpc_client.server.processes.board import Board
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.message_pipe import MessagePipe, Received
from dm_env_rpc_client.system.waiting import wait_in_parts
from dm_env_rpc_client.transports.listeners import open_acceptor
from dm_env_rpc_client.transports.server_streams import Peer

__all__ = ["Workers"]

_log = logging.getLogger("dm_env_rpc_client.server")

_LOGGERS = ("", *(f"dm_env_rpc_client{name}" for name in ("", ".server", ".server.clients")))
"""Whose levels the workers have, too."""

_ADVICE = (
    "pass what another process can import: a function or a class of a module, functools.partial of "
    "one, or a text such as 'my_module:make'"
)

_LOOK_SECONDS = 0.25
"""How often the process of a worker is looked at."""

_STOPPED_SECONDS = 10.0
"""How long a worker may be stopped by SIGSTOP before it is killed. One that computes is never."""

_ERRORS_SECONDS = 1.0
"""How long a worker may take to tell of an error that it has counted; it may be stopped."""

_STOP_SECONDS = 10.0
"""How long a worker may take to end beyond the grace."""

_END_SECONDS = 5.0
"""How long a worker may take to exit when it has closed its pipe."""

_MAX_DELAY_SECONDS = 5.0
"""Between attempts to start a worker that ends while it starts."""

_MAX_UNADOPTED = 64
"""Connections that a worker was handed and has not taken; then others get them."""

_WAIT_SECONDS = 0.02


class _RaisedInWorkerError(Exception):
    """The cause of an exception that came from a worker: its traceback there, as text."""


class _Worker:
    """A worker process.

    Attributes:
      index: its place on the board.
      serial: its number among all that there ever were.
      pid: the id of the process.
      control: to it.
      levels: of loggers, by name, as it was told.
      is_lost: whether its end is known, so that it gets no more connections.
      is_ready: whether it has begun to serve.
      has_closed: whether it has stopped and said that all of its worlds are closed.
      failure: what it said why it did not.
      ended: how it ended.
      has_begun: set when one of both is known, or when it has ended.
    """

    def __init__(
        self,
        index: int,
        serial: int,
        process: Any,
        control: MessagePipe,
        levels: Mapping[str, int],
    ):
        self.index = index
        self.serial = serial
        self.pid: int = process.pid
        self._process = process
        self.control = control
        self.levels = levels
        self.is_lost = self.is_ready = False
        self.has_closed = False
        self.failure = self.ended = ""
        self.has_begun = threading.Event()
        self._stopped_looks = 0
        self._killed_because = ""

    def say(self, *message: Any, descriptor: int | None = None) -> None:
        """Tells it something; OSError if it has ended."""
        self.control.send(pickle.dumps(message), descriptor=descriptor)

    @property
    def is_clean(self) -> bool:
        """Whether none of its worlds is left open."""
        return self.has_closed or not self.is_ready

    # Only the thread that supervises it calls these.

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        alive: bool = self._process.is_alive()
        return alive

    def look_stopped(self) -> float:
        """Looks whether a signal has stopped the process, and returns for how many seconds.

        Looks are counted, not the clock: all processes may have been stopped together.
        """
        self._stopped_looks = self._stopped_looks + 1 if children.is_stopped(self.pid) else 0
        return self._stopped_looks * _LOOK_SECONDS

    def go_on(self) -> None:
        """Lets a stopped process continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self, because: str) -> None:
        """Kills the process, and says why where its end is told."""
        if not self._killed_because:
            self._killed_because = because
            _log.warning("worker process %d %s and is killed", self.pid, because)
            self._process.kill()

    def bury(self) -> None:
        """Waits until the process has ended, kills it if it does not, and says how it ended."""
        process = self._process
        process.join(_END_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        code = process.exitcode
        ended = f"ended with exit code {code}"
        if self._killed_because:
            ended = f"{self._killed_because} and was killed"
        elif code is not None and code < 0:
            with contextlib.suppress(ValueError):
                ended = f"was ended by {signal.Signals(-code).name}"
        self.ended = ended
        self.control.close()
        process.close()


class Workers:
    """The worker processes of a server, and the address that they share.

    Args:
      setup: what the workers are told.
      address: where to listen.
      properties: those that all clients have; None for none.

    Attributes:
      address: where it listens, with the port that it got; or the program that the workers dial.

    Raises:
      SpecError: something in `setup` cannot be given to another process.
      ChildProcessError: a worker ended while it started.
      OSError: the address is taken, or does not belong to this machine.
    """

    def __init__(self, setup: in_worker.Setup, address: str, properties: Properties | None):
        self._setup = _pickled(setup)
        self._properties = properties
        self._pid = os.getpid()
        self._error_log = ErrorLog()
        self._board = Board(setup.processes)
        self._serials = itertools.count(1)
        self._began = time.monotonic()
        self._heard_errors = [0] * setup.processes
        self._heard = threading.Condition()
        self._last = 0
        # Protects `_workers`, and that none is started when all are to stop.
        self._lock = threading.Lock()
        # Protects that nothing is counted as handed to a worker that the board has forgotten.
        self._handing = threading.Lock()
        self._stop_by = 0.0
        self._is_serving = False
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._workers: dict[int, _Worker] = {}
        self._threads: list[threading.Thread] = []
        self._acceptor: Any = None
        # Before multiprocessing waits for its processes, at the exit, to end by SIGTERM.
        multiprocessing.util.Finalize(self, _end_at_exit, (weakref.ref(self),), exitpriority=0)
        try:
            for index in range(setup.processes):
                thread = threading.Thread(
                    target=self._supervise,
                    args=(self._start(index),),
                    name=f"dm_env_rpc supervises worker {index}",
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
            for worker in list(self._workers.values()):
                worker.has_begun.wait()
                _check(worker)
            self._is_serving = True
            if setup.dial is None:
                self._acceptor = open_acceptor(address, self._hand_over)
                self.address: str = self._acceptor.address
            else:
                self.address = setup.dial.address
        except BaseException:
            self.stop(0.0)
            raise

    @property
    def errors(self) -> list[BaseException]:
        """See `Server.errors`."""
        self._hear_errors()
        return self._error_log.kept

    @property
    def world_count(self) -> int:
        """See `Server.world_count`."""
        return self._board.total("worlds")

    @property
    def agent_count(self) -> int:
        """See `Server.agent_count`."""
        return self._board.total("agents")

    def stats(self) -> ServerStats:
        """See `Server.stats`."""
        for worker in list(self._workers.values()):
            self._tell_levels(worker)
        self._hear_errors()
        board = self._board
        return added_up(
            [board.counted(index) for index in range(board.size)],
            self._began,
            board.total("streams"),
            self.world_count,
            self.agent_count,
            self._error_log.count,
        )

    def wait(self, timeout: float | None = None) -> bool:
        """See `Server.wait`."""
        return wait_in_parts(self._stopped.wait, timeout)

    def stop(self, grace: float) -> bool:
        """Ends all workers, and returns when they have ended; see `Server.stop`."""
        if os.getpid() != self._pid:
            return True  # A forked child has no workers.
        self._begin_to_stop(grace)
        if self._acceptor is not None:
            self._acceptor.close()
        for worker in list(self._workers.values()):
            with contextlib.suppress(OSError):
                worker.say("stop", grace)
        self._join(self._stop_by + _STOP_SECONDS + 2 * _END_SECONDS)
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
            self._join(time.monotonic() + 2 * _END_SECONDS)

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
                    self._board.handed(worker.index)
            if worker is None:
                self._stopping.wait(_WAIT_SECONDS)
                continue
            try:
                worker.say("client", descriptor=descriptor)
            except OSError:
                worker.is_lost = True  # It has ended, which its thread notices soon.
            else:
                self._last = worker.index
                return

    def _next_worker(self) -> _Worker | None:
        board = self._board
        able = [
            worker
            for worker in (self._workers[index] for index in board.ready())
            if not worker.is_lost
            and board.get(worker.index, "handed") - board.get(worker.index, "adopted")
            < _MAX_UNADOPTED
        ]
        able.sort(
            key=lambda worker: (
                board.is_behind(worker.index),
                board.load(worker.index),
                (worker.index - self._last - 1) % board.size,
            )
        )
        return next((worker for worker in able if not children.is_stopped(worker.pid)), None)

    # Each worker has a thread that does this.

    def _supervise(self, worker: _Worker) -> None:
        """Hears a worker, and starts another when it has ended."""
        delay = 0.0
        while True:
            self._hear(worker)
            self._bury(worker)
            if not self._is_serving:
                return
            delay = 0.0 if worker.is_ready else min(_MAX_DELAY_SECONDS, 2 * delay + 0.1)
            while True:
                if self._stopping.wait(delay):
                    return
                try:
                    worker = self._start(worker.index)
                    break
                except _StoppingError:
                    return
                except Exception:
                    _log.exception("a worker process could not be started")
                    delay = _MAX_DELAY_SECONDS

    def _start(self, index: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        with self._lock:
            if self._stopping.is_set():
                raise _StoppingError
            serial = next(self._serials)
            control, others = MessagePipe.pair()
            questions: tuple[MessagePipe, MessagePipe] | None = None
            if self._properties is not None:
                questions = MessagePipe.pair()
                threading.Thread(
                    target=_answer,
                    args=(self._properties, questions[0]),
                    name=f"dm_env_rpc answers worker {index}",
                    daemon=True,
                ).start()
            asks = None if questions is None else questions[1]
            levels = _levels()
            process = context.Process(
                target=in_worker.run,
                args=(self._setup, others, asks, self._board, index, serial, levels),
                name=f"dm_env_rpc worker {serial}",
                daemon=True,
            )
            try:
                process.start()
            except BaseException:
                control.close()
                raise
            finally:
                others.close()
                if asks is not None:
                    asks.close()
            worker = self._workers[index] = _Worker(index, serial, process, control, levels)
        return worker

    def _hear(self, worker: _Worker) -> None:
        """Does what a worker says, until it has ended."""
        control, next_look = worker.control, 0.0
        with contextlib.suppress(EOFError, OSError):
            while True:
                if control.wait(_LOOK_SECONDS):
                    received = control.receive()
                    try:
                        self._take(worker, received)
                    except Exception:
                        _log.exception("what a worker process said cannot be taken")
                if time.monotonic() >= next_look:
                    # What it has started may keep its end of the pipe open.
                    if not worker.is_alive:
                        return
                    self._look(worker)
                    next_look = time.monotonic() + _LOOK_SECONDS

    def _look(self, worker: _Worker) -> None:
        """Kills a worker that a signal has stopped for long, or that does not stop in time."""
        stopped = worker.look_stopped()
        self._board.set(worker.index, "is_stopped", int(stopped > 0))
        if not self._stopping.is_set():
            if stopped >= _STOPPED_SECONDS:
                worker.kill(f"was stopped by a signal for {stopped:g} s")
            elif not stopped:
                self._tell_levels(worker)
        elif stopped and time.monotonic() < self._stop_by:
            worker.go_on()  # So that it can close its worlds.
        elif stopped or time.monotonic() > self._stop_by + _STOP_SECONDS:
            worker.kill("did not stop in time")

    def _take(self, worker: _Worker, received: Received) -> None:
        what, *arguments = pickle.loads(received.message)
        if what == "ready":
            worker.is_ready = True
            self._board.set(worker.index, "serial", worker.serial)
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
            assert received.descriptor is not None
            self._pass_on(received.descriptor, *arguments)

    def _bury(self, worker: _Worker) -> None:
        """Forgets a worker that has ended."""
        lost = self._board.get(worker.index, "worlds")
        with self._handing:
            worker.is_lost = True
            self._board.clear(worker.index)
        with self._heard:  # One that was killed may have counted an error and not told it.
            self._heard_errors[worker.index] = self._board.counted(worker.index)[ERRORS]
            self._heard.notify_all()
        worker.bury()
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
            for worker in list(self._workers.values()):
                if worker.serial == serial:
                    with contextlib.suppress(OSError):
                        worker.say("link", peer, descriptor=descriptor)
        finally:
            os.close(descriptor)

    def _have_error(self, index: int, pickled: bytes, shown: str, where: str, text: str) -> None:
        try:
            error = pickle.loads(pickled)
        except Exception:
            error = RuntimeError(shown)  # Its class is known to the worker only.
        error.__cause__ = _RaisedInWorkerError(f"in a worker process:\n{where}")
        self._error_log.add(error, text)
        with self._heard:
            self._heard_errors[index] += 1
            self._heard.notify_all()

    # All of them.

    def _hear_errors(self) -> None:
        """Waits for the errors that workers have counted, which they do before they tell them."""
        counted = [self._board.counted(i)[ERRORS] for i in range(self._board.size)]
        with self._heard:
            self._heard.wait_for(
                lambda: all(map(operator.ge, self._heard_errors, counted)), _ERRORS_SECONDS
            )

    def _tell_levels(self, worker: _Worker) -> None:
        levels = _levels()
        if levels != worker.levels:
            worker.levels = levels
            with contextlib.suppress(OSError):
                worker.say("levels", levels)


def _end_at_exit(workers: weakref.ref[Workers]) -> None:
    found = workers()
    if found is not None:
        found.abort_and_wait()


class _StoppingError(Exception):
    """No worker is started, because all are to stop."""


def _levels() -> Mapping[str, int]:
    return {name: logging.getLogger(name).getEffectiveLevel() for name in _LOGGERS}


def _log_here(record: logging.LogRecord) -> None:
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _answer(properties: Properties, pipe: MessagePipe) -> None:
    answer_questions(properties, pipe)
    pipe.close()


def _pickled(setup: in_worker.Setup) -> bytes:
    site = setup.site
    parts: dict[str, Any] = {
        **{
            f"environment {name!r}" if name else "environment": hosted
            for name, hosted in site.factories.items()
        },
        "default_actions": site.default_actions,
        "extensions": site.extensions,
    }
    for name, part in parts.items():
        try:
            pickle.dumps(part)
        except Exception as error:
            raise SpecError(
                f"{name} cannot be given to worker processes: "
                f"{type(error).__name__}: {error}; {_ADVICE}"
            ) from error
    return pickle.dumps(setup)


def _check(worker: _Worker) -> None:
    """Raises if a worker has not begun to serve."""
    if worker.is_ready and not worker.ended:
        return
    if not worker.failure:
        raise ChildProcessError(
            f"a worker process {worker.ended} while it started; what it printed says why. A script "
            "that serves needs `if __name__ == '__main__':` around what it does"
        )
    raise SpecError(
        f"a worker process cannot load what it is to serve: {worker.failure}; {_ADVICE}. What is "
        "defined in a notebook or at a prompt cannot be imported: write it to a file"
    )
