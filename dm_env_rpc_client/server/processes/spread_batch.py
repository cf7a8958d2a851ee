"""Batches hosted by the server's own process, with rows spread over the workers.

Each worker hosts a contiguous range of rows, and all workers step their rows at the same time.
When a worker ends, each of its rows fails once and is then recreated in the replacement worker.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import dm_env
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.server.batch import AnyBatch, check_specs, other_form
from dm_env_rpc_client.server.batch_settings import AskedRows, Settings, of_reset
from dm_env_rpc_client.server.construction import BatchMaker
from dm_env_rpc_client.server.errors import Report
from dm_env_rpc_client.server.processes.messages import Requests
from dm_env_rpc_client.server.processes.registry import WorkerShare
from dm_env_rpc_client.server.processes.shared_arrays import SharedArrays, forms_of
from dm_env_rpc_client.server.processes.worker_rows import (
    MadeRows,
    PreparedRows,
    RowsAnswer,
    action_forms,
)
from dm_env_rpc_client.server.rows import RowKind, Rows
from dm_env_rpc_client.server.thread_bound import StandIn
from dm_env_rpc_client.system.message_pipe import MessagePipe
from dm_env_rpc_client.system.owner_threads import ElsewhereError
from dm_env_rpc_client.tensors import structures
from dm_env_rpc_client.transports.server_streams import StreamStatusError

_LOST = (
    "ChildProcessError: the process of this row has ended; the row will be recreated and will "
    "begin a sequence in the next step"
)


class RowPlaces(Protocol):
    """The interface to the workers that host the rows of a batch."""

    def spread(self, most: int) -> list[int]:
        """Choose workers for the rows of a batch, update their counts, and return their numbers.

        Waits until there is a worker.

        Args:
          most: the maximum number of workers.

        Raises:
          StreamStatusError: the server is stopping.
        """

    def open_rows(self, number: int) -> tuple[MessagePipe, WorkerShare]:
        """Return a pipe to a worker and the worker's share, or raise OSError if it has ended."""

    def wait_replaced(self, number: int, share: WorkerShare) -> None:
        """Wait for the replacement of an ended worker, and add the rows to its count.

        Args:
          number: the number of the worker.
          share: the share of the ended worker.

        Raises:
          ChildProcessError: the replacement ended while it started, or the server is stopping.
        """

    def gone(self, share: WorkerShare) -> None:
        """Record that rows have been closed, and remove them from the worker's count."""

    def lost(self, share: WorkerShare) -> None:
        """Record that a worker has ended."""


class _LostError(ChildProcessError):
    """Raised when the worker that hosts some rows has ended."""


class _Part:
    """The rows of a batch that one worker hosts.

    Args:
      places: the workers.
      number: the number of the worker.
      rows: the indices of the rows.

    Attributes:
      rows: as the argument.
      slice: the rows in arrays of the whole batch.
      is_lost: whether the worker has ended, and its rows with it.
      arrays: the shared arrays that the worker fills; None in place of arrays of objects.
      actions: the shared arrays that the worker reads, likewise.
    """

    def __init__(self, places: RowPlaces, number: int, rows: range):
        self.rows = rows
        self.slice = slice(rows.start, rows.stop)
        self.is_lost = True
        self.actions: Sequence[npt.NDArray[Any] | None] = []
        self.arrays: Sequence[npt.NDArray[Any] | None] = []
        self._places = places
        self._number = number
        self._requests: Requests | None = None
        self._share: WorkerShare | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether a request was begun, but its answer was not received."""
        return self._requests is not None and self._requests.is_awaited

    def open(self) -> None:
        """Open a pipe to the worker or its replacement.

        Raises:
          ChildProcessError: there is none.
        """
        if self._share is not None:
            self._places.wait_replaced(self._number, self._share)
        try:
            pipe, self._share = self._places.open_rows(self._number)
        except OSError as error:
            raise _LostError("the worker process has ended") from error
        self._requests, self.is_lost = Requests(pipe), False

    def begin(self, method: str, *arguments: Any, descriptor: int | None = None) -> None:
        """Ask the worker to call a method of its `_Rows`, without waiting for the answer."""
        # Not in the `try` below: user code may raise an OSError, too.
        message = pickle.dumps((method, *arguments))
        if self.is_interrupted:
            self.close()  # The worker has not ended, and its other rows go on.
        if not self.is_lost:
            assert self._requests is not None
            try:
                self._requests.begin(message, descriptor)
            except OSError:
                self._lose()

    def receive(self) -> bytearray | None:
        """Receive the answer to a request; return None if the worker has ended."""
        if self.is_lost:
            return None
        assert self._requests is not None
        try:
            return self._requests.end()
        except (OSError, EOFError):
            self._lose()
            return None

    def unpacked(self, received: bytearray | None) -> Any:
        """Return the result in an answer, or raise its error, or _LostError if there is none."""
        if received is None:
            raise _LostError(
                f"the process hosting rows {self.rows.start} to {self.rows.stop - 1} of the batch "
                "has ended; the next request recreates these rows"
            )
        answer, error = pickle.loads(received)
        if error is not None:
            raise error.unpacked()
        return answer

    def ask(self, method: str, *arguments: Any, descriptor: int | None = None) -> Any:
        """Send a request to the worker, and return its result or raise its error."""
        self.begin(method, *arguments, descriptor=descriptor)
        return self.unpacked(self.receive())

    def share_memory(self, rows: Rows) -> None:
        """Share the memory of the arrays with the worker.

        Args:
          rows: the rows of the whole batch.
        """
        count = len(self.rows)
        actions = [(dtype, (count, *shape[1:])) for dtype, shape in action_forms(rows.action_spec)]
        shared = SharedArrays([*actions, *forms_of(rows.arrays, count)])
        with shared.handed_over() as descriptor:
            self.ask("memory", descriptor=descriptor)
        self.actions, self.arrays = shared.arrays[: len(actions)], shared.arrays[len(actions) :]

    def close(self) -> None:
        """Close the pipe to the worker, which then closes its remaining rows."""
        if self._requests is not None:
            self._requests.pipe.shut_down()
            self._requests.pipe.close()
        if not self.is_lost and self._share is not None:
            self._places.gone(self._share)
        self.is_lost = True

    def _lose(self) -> None:
        assert self._share is not None
        self._places.lost(self._share)
        assert self._requests is not None
        self.is_lost, self._requests.is_awaited = True, False


class SpreadBatch(AnyBatch):
    """A batch whose rows are hosted by workers and whose methods are all called from one thread.

    Args:
      places: the workers.
      name: the name of the environment.
      asked: the requested rows.
      report: receives exceptions raised by rows.

    Raises:
      ElsewhereError: the factory makes batches itself, each of which must be in one process.
      StreamStatusError: a worker has ended in the meantime, or the server is stopping.
      Exception: as `construct`.
    """

    def __init__(self, places: RowPlaces, name: str, asked: AskedRows, report: Report):
        super().__init__(asked.total, report)
        self._name = name
        self._asked = asked
        self._settings: list[Settings] = list(asked.settings)
        # The settings that environments took themselves, and take again when they are recreated.
        self._taken: list[Settings] = [{} for _ in self._settings]
        self._has_ended = False
        numbers = places.spread(self.num_envs)
        # Neighbouring rows share a worker, so that a part is a slice of every array.
        bounds = [self.num_envs * n // len(numbers) for n in range(len(numbers) + 1)]
        self._parts = [
            _Part(places, number, range(*bounds[n : n + 2])) for n, number in enumerate(numbers)
        ]
        try:
            self._make()
        except BaseException as error:
            # Rows of other workers may exist; nothing else would close them.
            self._outcomes("close")
            self._close_parts()
            if isinstance(error, _LostError):
                raise StreamStatusError(
                    "UNAVAILABLE",
                    "a process hosting rows of the batch has ended; it is unknown whether the "
                    "request took effect",
                ) from error
            raise

    def _make(self) -> None:
        for part in self._parts:
            part.open()
        # All workers make their rows at the same time.
        made = self._ask_all("make", *zip(*map(self._to_make, self._parts), strict=True))
        # The factory returned a batch: one environment for all rows, which cannot be spread.
        if None in made:
            raise ElsewhereError
        first: MadeRows = made[0]
        for part, own in zip(self._parts, made, strict=True):
            _check_kind(own.kind, part, first.kind, self._asked.has_row_settings)
        self._adopt(first)

    def _to_make(self, part: _Part) -> tuple[str, AskedRows]:
        asked = dataclasses.replace(self._asked, settings=self._settings)
        return self._name, asked.part(part.rows.start, part.rows.stop)

    def _adopt(self, made: MadeRows, is_new: bool = True) -> None:
        """Adopt the state of newly created rows; if `is_new`, allocate arrays for their specs."""
        self._default_actions = made.default_actions
        if is_new:
            self._rows = Rows(made.kind, self.num_envs)
            self._flatten_action = structures.flattener(self._rows.action_spec, "action")
            self._action_shapes = [leaf.shape for leaf in structures.leaves(self.action_spec())]
            for part in self._parts:
                with contextlib.suppress(_LostError):  # Lost rows get it when they are recreated.
                    part.share_memory(self._rows)

    @property
    def environments(self) -> Sequence[Any]:
        return [_RowElsewhere(self, row) for row in range(self.num_envs)]

    @property
    def default_actions(self) -> Mapping[str, Any]:
        return self._default_actions

    def configure(self, settings: Settings) -> None:
        of_rows = of_reset(settings, self.num_envs)
        self._mend()
        own = [
            {row - part.rows.start: of_rows[row] for row in part.rows if row in of_rows}
            for part in self._parts
        ]
        # Two phases: a setting refused by one worker must leave the rows of all others unchanged.
        prepared = self._outcomes("prepare", own)
        try:
            after = self._after(prepared)
        except BaseException:
            self._undo(prepared)
            raise
        taken = frozenset[str]().union(*(each.taken for each in prepared))
        for row, given in of_rows.items():
            kept = {name: value for name, value in given.items() if name not in taken}
            self._settings[row] = {**self._settings[row], **kept}
            self._taken[row] = {**self._taken[row], **{n: given[n] for n in given if n in taken}}
        # Recorded before `keep`: rows lost from here on are recreated with these settings.
        self._outcomes("keep")
        self._adopt(after.made, after.is_new)

    def _after(self, prepared: Sequence[Any]) -> PreparedRows:
        """Return the state that all rows will have with the prepared settings.

        Args:
          prepared: the state of the rows of each worker, or its error.

        Raises:
          RequestError: the rows of the workers differ.
          Exception: the first error.
        """
        for error in prepared:
            if isinstance(error, BaseException):
                raise error
        are_new = all(each.is_new for each in prepared)
        expected = prepared[0].made.kind if are_new else self._rows.kind
        for part, each in zip(self._parts, prepared, strict=True):
            kind = each.made.kind if each.is_new else self._rows.kind
            _check_kind(kind, part, expected, True)
        after: PreparedRows = prepared[0]._replace(is_new=are_new)
        return after

    def _undo(self, prepared: Sequence[Any]) -> None:
        """Undo the prepared settings in the rows."""
        have = [isinstance(each, PreparedRows) for each in prepared]
        _raise_first(self._outcomes("undo", parts=list(itertools.compress(self._parts, have))))

    def reset(self) -> dm_env.TimeStep:
        """Begin sequences in the rows; see `Batch.reset`."""
        self._mend()
        for part in self._parts:
            part.begin("begin")
        return self._gathered(dm_env.StepType.FIRST, "reset")

    def step(self, action: Any) -> dm_env.TimeStep:
        """Step all rows; see `Batch.step`."""
        self._mend()
        leaves = [
            value
            if type(value) is np.ndarray and value.shape == shape
            else np.broadcast_to(value, shape)
            for value, shape in zip(self._flatten_action(action), self._action_shapes, strict=True)
        ]
        for part in self._parts:
            others = {}
            for place, (value, shared) in enumerate(zip(leaves, part.actions, strict=True)):
                if shared is not None and value.dtype == shared.dtype:
                    # Written before the message "step", and read by the worker after it: the pipe
                    # orders both.
                    shared[...] = value[part.slice]
                else:
                    # The memory has no place for texts and values of another dtype; they travel in
                    # the message.
                    others[place] = value[part.slice]
            part.begin("step", others)
        return self._gathered(dm_env.StepType.MID, "step")

    def _gathered(self, kind: dm_env.StepType, request: str) -> dm_env.TimeStep:
        """Wait until all rows have been reset or stepped, and return their TimeStep."""
        rows, failures = self._rows, dict[int, Exception | str]()
        try:
            for part, message in zip(self._parts, _received(self._parts), strict=True):
                start = part.rows.start
                try:
                    answer: RowsAnswer = part.unpacked(message)
                except _LostError:
                    # The other workers have stepped: their rows continue, and only these fail,
                    # once.
                    failures.update(dict.fromkeys(part.rows, _LOST))
                    continue
                failures.update({start + row: text for row, text in answer.errors.items()})
                objects = iter(answer.objects)
                # Copied after the answer: a worker killed while it writes has sent none, so that
                # no row is half written.
                for array, shared in zip(rows.arrays, part.arrays, strict=True):
                    array[part.slice] = next(objects) if shared is None else shared
                for row, pickled in answer.infos:
                    try:
                        own = pickle.loads(pickled)
                    except Exception as error:
                        failures[start + row] = error
                    else:
                        assert rows.infos is not None
                        rows.infos.put_taken(start + row, own)
            return self._timestep(kind, failures, request)
        except BaseException:
            rows.drop_infos()
            raise

    def close_replaced(self) -> None:
        _raise_first(self._outcomes("close_replaced"))

    def close(self) -> None:
        """Close every environment, and then raise the first error, if any."""
        outcomes = self._outcomes("close")
        self._close_parts()
        _raise_first(outcomes)

    def run(self, row: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with the environment of a row."""
        self._mend()
        part = next(part for part in self._parts if row in part.rows)
        return part.ask("run", row - part.rows.start, function, *arguments)

    def _close_parts(self) -> None:
        for part in self._parts:
            part.close()

    def _ask_all(self, method: str, *arguments: Sequence[Any]) -> list[Any]:
        """Send a request to all workers, and return the answers or raise the first error.

        Args:
          method: a method of the workers' `_Rows`.
          *arguments: for each argument, its values by worker.
        """
        outcomes = self._outcomes(method, *arguments)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def _outcomes(
        self, method: str, *arguments: Sequence[Any], parts: Sequence[_Part] | None = None
    ) -> list[Any]:
        """Send a request to all workers, or to some, and return the result or the error of each."""
        parts = self._parts if parts is None else parts
        # All are sent before any answer is awaited, so that the workers run at the same time.
        for number, part in enumerate(parts):
            part.begin(method, *(each[number] for each in arguments))
        outcomes: list[Any] = []
        for part, message in zip(parts, _received(parts), strict=True):
            try:
                outcomes.append(part.unpacked(message))
            except BaseException as error:
                outcomes.append(error)
        return outcomes

    def _mend(self) -> None:
        """Recreate the rows of workers that have ended.

        Raises:
          StreamStatusError: they cannot be recreated, and the world has ended.
        """
        if any(part.is_interrupted for part in self._parts):
            self._has_ended = True  # A request was interrupted: its rows are in an unknown state.
        lost = [part for part in self._parts if part.is_lost]
        if not lost and not self._has_ended:
            return
        error: Exception | None = None
        # One attempt: a world that has lost rows for good fails each request in the same way.
        if not self._has_ended:
            try:
                for part in lost:
                    self._make_anew(part)
                return
            except Exception as raised:
                self._has_ended, error = True, raised
                self._report(raised, "rows of a batch could not be recreated")
        raise StreamStatusError(
            "UNAVAILABLE",
            "a process hosting rows of this stream's world has ended, or a request to it was "
            "interrupted, and its rows could not be recreated; connect again and create another "
            "world",
        ) from error

    def _make_anew(self, part: _Part) -> None:
        # The former pipe leads to a process that is gone.
        part.close()
        part.open()
        made: MadeRows | None = part.ask("make", *self._to_make(part))
        assert made is not None, "it was no batch before"
        taken = [self._taken[row] for row in part.rows]
        # Settings taken by environments themselves are not arguments of their constructors.
        if any(taken):
            prepared: PreparedRows = part.ask("prepare", dict(enumerate(taken)))
            part.ask("keep")
            part.ask("begin_all")
            made = prepared.made
        _check_kind(made.kind, part, self._rows.kind, True)
        part.share_memory(self._rows)


def _received(parts: Sequence[_Part]) -> list[bytearray | None]:
    """Receive the answers of workers, with None in place of the answer of one that has ended."""
    # Without reading any: that runs code of users, and if it raised, the answers of later workers
    # would stay in their pipes.
    return [part.receive() for part in parts]


def _raise_first(outcomes: Sequence[Any]) -> None:
    """Raise the first error, except the errors for workers that have ended."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, _LostError):
            raise outcome


class _RowElsewhere(StandIn):
    """A stand-in for the environment of one row of a `SpreadBatch`."""

    def __init__(self, batch: SpreadBatch, row: int):
        self._batch = batch
        self._row = row

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._batch.run(self._row, function, *arguments)


def _check_kind(own: RowKind, part: _Part, expected: RowKind, has_settings: bool) -> None:
    """Raise an error if a worker's rows are not of the expected kind; see `check_specs`."""
    check_specs(own.specs, part.rows.start, expected.specs, has_settings)
    if own.form != expected.form:
        raise other_form(part.rows.start)


class SpreadBatches(BatchMaker):
    """The factory that creates the batches of one environment.

    Args:
      places: the workers.
      name: the name of the environment.

    Attributes:
      are_whole: whether the environment has turned out to be a batch itself, for one process.
    """

    def __init__(self, places: RowPlaces, name: str):
        self.are_whole = False
        self._places = places
        self._name = name

    def make_batch(self, settings: Mapping[str, Any], report: Report) -> dm_env.Environment:
        try:
            return SpreadBatch(self._places, self._name, AskedRows.of(settings), report)
        except ElsewhereError:
            self.are_whole = True
            raise
