"""The rows of batches in a worker; the batches themselves are in the server's own process.

Each worker hosts some of the rows of a batch, and receives commands for them over a pipe. Numbers
are exchanged through shared memory. Actions are written to this memory before a step is requested,
and results are written before the request is answered.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import functools
import io
import logging
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.batch import Batch, Prepared
from dm_env_rpc_client.server.batch_settings import AskedRows, Settings
from dm_env_rpc_client.server.construction import HasRowsError
from dm_env_rpc_client.server.host import Host
from dm_env_rpc_client.server.processes.messages import PackedError, receive_message
from dm_env_rpc_client.server.processes.shared_arrays import Form, SharedArrays, forms_of
from dm_env_rpc_client.server.rows import RowKind
from dm_env_rpc_client.server.thread_bound import in_thread_of
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.tensors import structures
from dm_env_rpc_client.tensors.specs import codec_of

_log = logging.getLogger("dm_env_rpc_client.server")


class MadeRows(NamedTuple):
    """What the server's own process needs to know about a worker's rows.

    Attributes:
      kind: the specification of each row.
      default_actions: values by flat name; see `AnyBatch`.
    """

    kind: RowKind
    default_actions: Mapping[str, Any]


class PreparedRows(NamedTuple):
    """The state of rows after they have accepted the settings of a Reset.

    Attributes:
      made: the facts about the rows with these settings.
      is_new: whether these settings need new arrays, for other specs.
      taken: the names of the settings that environments applied themselves.
    """

    made: MadeRows
    is_new: bool
    taken: frozenset[str]


class RowsAnswer(NamedTuple):
    """The results of rows, except for the numeric arrays.

    Attributes:
      errors: the texts of the exceptions of rows, by row.
      infos: the infos of rows, each with the index of its row and pickled alone, so that one that
        cannot be unpickled is the error of its row.
      objects: the arrays of objects, in their order.
    """

    errors: Mapping[int, str]
    infos: Sequence[tuple[int, bytes]]
    objects: Sequence[npt.NDArray[Any]]


class RowsHere:
    """The rows of all batches in this process.

    Args:
      host: the factories of the rows, and the error log.
    """

    def __init__(self, host: Host):
        self._host = host
        # The threads of rows, with their pipes and the events set when they begin to close.
        self._open: dict[threading.Thread, tuple[MessagePipe, threading.Event]] = {}
        self._are_clean = True

    def adopt(self, descriptor: int) -> None:
        """Create and step rows as requested over a pipe.

        Args:
          descriptor: this end of the pipe.
        """
        pipe = MessagePipe.of(descriptor)
        # Set before the environments are closed: `close` waits for steps in progress, not for a
        # lock.
        closes = threading.Event()
        thread = threading.Thread(
            target=self._serve,
            args=(pipe, closes),
            name="dm_env_rpc has rows of a batch",
            daemon=True,
        )
        self._open[thread] = pipe, closes
        try:
            thread.start()
        except RuntimeError:
            _log.exception("no thread can be started for rows of a batch")
            del self._open[thread]
            pipe.close()

    def close(self, deadline: float) -> bool:
        """Close all remaining rows, and return whether these and all earlier ones were closed.

        Args:
          deadline: the end of the wait for steps in progress, in seconds of the monotonic clock.
        """
        left = list(self._open.items())
        # All pipes first, so that the threads close their rows at the same time.
        for _, (pipe, _) in left:
            pipe.shut_down()
        for thread, (_, closes) in left:
            if closes.wait(max(0.0, deadline - time.monotonic())):
                thread.join()
        return self._are_clean and not self._open

    def _serve(self, pipe: MessagePipe, closes: threading.Event) -> None:
        rows = _Rows(self._host)
        main = self._host.main
        # `thread="main"` holds for rows in workers, too.
        call: Callable[..., Any] = _call if main is None else main.call
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    (method, *arguments), descriptor = receive_message(pipe)
                    if descriptor is not None:
                        arguments.append(descriptor)
                    _answer(pipe, functools.partial(call, getattr(rows, method), *arguments))
        except BaseException:
            _log.exception("rows of a batch failed")
        finally:
            closes.set()
            pipe.close()
            try:
                call(rows.close)
            except Exception as error:
                self._are_clean = False
                self._host.error_log.add(error, "closing rows of a batch failed")
            del self._open[threading.current_thread()]


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _answer(pipe: MessagePipe, call: Callable[[], Any]) -> None:
    try:
        answer = _picklable((call(), None))
    except BaseException as error:
        # Exceptions of user code may not be picklable, or not importable at the other end.
        answer = pickle.dumps((None, PackedError.of(error)))
    pipe.send(answer)


def action_forms(action_spec: Any) -> list[Form]:
    """Return the layouts of the arrays in which actions arrive.

    Args:
      action_spec: the specs of the actions, [N, ...] each.
    """
    leaves = structures.leaves(action_spec)
    return [(codec_of(leaf, "action").dtype, tuple(leaf.shape)) for leaf in leaves]


class _Rows:
    """The rows of one batch in a worker. The server's own process calls the public methods."""

    def __init__(self, host: Host):
        self._host = host
        self._batch: Batch | None = None
        self._prepared: Prepared | None = None
        self._actions: Sequence[npt.NDArray[Any] | None] = []
        self._values: Sequence[npt.NDArray[Any] | None] = []

    @property
    def _made(self) -> Batch:
        assert self._batch is not None, "they are made first"
        return self._batch

    def make(self, name: str, asked: AskedRows) -> MadeRows | None:
        """Create the rows, or return None if the factory made a batch, which is then closed.

        Args:
          name: the name of the environment.
          asked: the requested rows.
        """
        self._first = asked.first
        try:
            self._batch = self._host.worlds.kind(name).make_rows(asked)
        except HasRowsError as found:
            if found.made is not None:
                found.made.close()
            return None
        return MadeRows(self._batch.rows.kind, self._batch.default_actions)

    def memory(self, descriptor: int) -> None:
        """Adopt the shared memory for the arrays of actions and results."""
        batch = self._made
        actions = action_forms(batch.action_spec())
        values = forms_of(batch.rows.arrays, batch.num_envs)
        shared = SharedArrays([*actions, *values], descriptor)
        with shared.handed_over():
            self._actions = shared.arrays[: len(actions)]
            self._values = shared.arrays[len(actions) :]
        spec = batch.action_spec()
        self._nest = structures.nester(spec) if actions else lambda _: spec

    def step(self, others: Mapping[int, npt.NDArray[Any]]) -> RowsAnswer:
        """Step the rows of this worker.

        Args:
          others: actions outside the shared memory, by their index among the leaves.
        """
        # Copied: environments may keep their actions, and the next step overwrites the memory.
        actions = [
            others[place] if place in others else np.array(shared)
            for place, shared in enumerate(self._actions)
        ]
        return self._answer_of(self._made.step_rows(self._nest(iter(actions))), "step")

    def begin(self) -> RowsAnswer:
        """Begin sequences, as `Batch.reset` does."""
        return self._answer_of(self._made.begin_rows(), "reset")

    def _answer_of(self, failures: dict[int, Exception | str], request: str) -> RowsAnswer:
        batch = self._made
        infos: list[tuple[int, bytes]] = []
        if batch.rows.infos is not None:
            taken, unsent = batch.rows.infos.taken()
            failures.update(unsent)
            for row, own in taken:
                try:
                    infos.append((row, _picklable(own)))
                except Exception as error:
                    failures[row] = error
        objects = []
        for array, shared in zip(batch.rows.arrays, self._values, strict=True):
            if shared is None:
                objects.append(array)
            else:
                # Written before the answer is sent; see `SpreadBatch._gathered`.
                shared[...] = array
        if not failures:
            return RowsAnswer({}, infos, objects)
        # Reported here, where the exceptions have their tracebacks; the answer has only texts.
        batch.report_rows(failures, request, self._first)
        errors = {
            row: error if isinstance(error, str) else batches.row_error(error)
            for row, error in failures.items()
        }
        return RowsAnswer(errors, infos, objects)

    def prepare(self, of_rows: Mapping[int, Settings]) -> PreparedRows:
        """Prepare the rows for new settings. The caller must then call `keep` or `undo`."""
        prepared = self._prepared = self._made.prepare(of_rows)
        is_new = prepared.rows is not self._made.rows
        made = MadeRows(prepared.rows.kind, prepared.default_actions)
        return PreparedRows(made, is_new, prepared.taken)

    def keep(self) -> None:
        """Apply the prepared settings."""
        assert self._prepared is not None
        self._prepared.keep()

    def undo(self) -> None:
        """Undo the prepared settings."""
        assert self._prepared is not None
        self._prepared.undo()

    def begin_all(self) -> None:
        """Make the next reset begin a sequence in all rows, even in those without new settings."""
        self._made.begin_all()

    def close_replaced(self) -> None:
        """Close the environments that settings have replaced."""
        self._made.close_replaced()

    def run(self, row: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with the environment of a row."""
        return in_thread_of(self._made.environments[row], function, *arguments)

    def close(self) -> None:
        """Close the rows. A second call does nothing."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.close()


def _unchangeable(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)  # A function, since pickle cannot find this type by its name.


_REDUCED: Mapping[type, Callable[[Any], Any]] = collections.ChainMap(
    {MappingProxyType: lambda mapping: (_unchangeable, (dict(mapping),))},
    copyreg.dispatch_table,
)
"""Pickle reducers, including one for the read-only mappings that replace all non-dict mappings in
infos."""


def _picklable(value: Any) -> bytes:
    try:
        return pickle.dumps(value)  # Faster, and nearly always possible.
    except TypeError:
        return _dumps(value)


def _dumps(value: Any) -> bytes:
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCED
    pickler.dump(value)
    return stream.getvalue()
