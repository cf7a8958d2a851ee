"""Remote environments as rows of batched worlds: one message steps all rows of a world.

`protocol/batches.py` explains the names that batched worlds use in the protocol.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client.environment.many.batch_adaptor import BatchAdaptor
from dm_env_rpc_client.environment.many.pool import EnvironmentPool, check_count, check_not_busy
from dm_env_rpc_client.environment.many.row_settings import reset_settings
from dm_env_rpc_client.environment.many.row_worlds import RowWorlds
from dm_env_rpc_client.environment.many.rows import Rows, RowSpecs, batch_of_actions, selector
from dm_env_rpc_client.errors import (
    DmEnvRpcError,
    EnvironmentsFailedError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.protocol.timesteps import MidSteps
from dm_env_rpc_client.tensors.settings import pack_settings

_LAST = int(dm_env.StepType.LAST)


Actions: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Action arrays by flat name, each with one row per environment."""


_NOTHING: Mapping[int, Actions] = MappingProxyType({})


class _World:
    """A batched world and the state of its rows.

    Args:
      rows: the indices of its rows among all environments.
      count: the number of all environments.

    Attributes:
      rows: the indices of its rows among all environments.
      all: the rows as the keys of a dict.
      at: an index that selects the rows among all environments; None if the world has all of them.
      under_way: the rows that receive the next TimeStep of the world.
      is_running: the rows with a running sequence, bool [n].
      has_begun: whether the world has answered a step since its creation.
      unseen: rows that began a sequence together with other rows, but whose first TimeStep was not
        returned.
    """

    def __init__(self, rows: Sequence[int], count: int):
        self.rows = list(rows)
        self.all: dict[int, None] = dict.fromkeys(rows)
        self.at = None if len(rows) == count else selector(self.rows)
        self._place = {row: place for place, row in enumerate(rows)}
        self.under_way: list[int] = []
        self.is_running = np.zeros(len(rows), np.bool_)
        self.has_begun = False
        self.unseen: set[int] = set()

    def places(self, rows: Iterable[int]) -> list[int]:
        """Return the positions of the given environments among the rows of this world."""
        return [self._place[row] for row in rows]

    def mask(self, rows: Iterable[int]) -> npt.NDArray[np.bool_]:
        """Return a mask, bool [n], that selects the given rows of the world."""
        return np.isin(np.arange(len(self.rows)), self.places(rows))


class _Answers(NamedTuple):
    """A `Consumer` that receives the answers of batched worlds."""

    put: Callable[[int, dm_env.TimeStep], bool]
    put_mid_steps: Callable[[list[int], MidSteps], object]


class BatchWorlds(RowWorlds):
    """N environments that are rows of one or more batched worlds.

    Args:
      pool: the environments, one `BatchAdaptor` for each world; closed with this object.
      groups: the rows of each world, by their indices.
    """

    is_batched = True

    def __init__(self, pool: EnvironmentPool, groups: Sequence[Sequence[int]]):
        super().__init__(pool, groups)
        self._worlds = [_World(group, self.num_envs) for group in groups]
        self._of = {row: number for number, group in enumerate(groups) for row in group}
        # The received rows not returned to a caller yet, in the order of their arrival.
        self._arrived: dict[int, None] = {}
        self._failures: dict[int, Exception] = {}
        # The rows that the current call returns.
        self._delivered: Sequence[int] = ()

    @property
    def adaptors(self) -> Sequence[BatchAdaptor]:
        """The adaptors, one for each world."""
        return cast("Sequence[BatchAdaptor]", self.pool.environments)

    def specs(self) -> RowSpecs:
        """Return the specs of one row."""
        return self.adaptors[0].row_specs()

    def step(self, actions: Mapping[str, Any], rows: Rows, idle: Collection[int] = ()) -> None:
        """Step all rows and wait for them. This method must be called within `exchange`.

        Args:
          actions: arrays [N, ...] by flat name.
          rows: the consumer of the TimeSteps.
          idle: rows that begin a sequence, with arbitrary actions.

        Raises:
          SpecError: an action does not conform, or a step is pending; nothing was sent.
          EnvironmentsFailedError: some rows failed; all others have stepped.
        """
        self.pool.taken, self._delivered = [], ()
        everything = range(self.num_envs)
        # The usual step of all rows needs no check of each row.
        if not self._is_idle():
            self.check_idle(everything)
        batch = self._batch(actions, everything, idle)
        sent = {
            number: batch
            # One world with all rows takes the arrays as they are, without a copy.
            if world.at is None
            else {name: values[world.at] for name, values in batch.items()}
            for number, world in enumerate(self._worlds)
        }
        for world in self._worlds:
            world.under_way = world.rows
        answers = self._answers(rows)
        try:  # `_failing`, inlined: no context manager in each step.
            self.pool.step(sent, answers)
        except BaseException as error:
            if not self._is_of_rows(error, sent):
                raise
        self._arrived.clear()
        return self._raise()

    def send(
        self, actions: Mapping[str, Any], ids: Sequence[int], idle: Collection[int] = ()
    ) -> None:
        """Step all rows of some worlds without waiting for them.

        Args:
          actions: arrays [M, ...] by flat name.
          ids: the M rows.
          idle: the rows among them that begin a sequence, with arbitrary actions.

        Raises:
          SpecError: an action does not conform, a step is pending, or `ids` contains only some
            rows of a world, although its rows all step together. Nothing was sent.
          EnvironmentsFailedError: nothing can be sent to some rows.
        """
        self.check_idle(ids)
        positions = {row: position for position, row in enumerate(ids)}
        numbers = dict.fromkeys(self._of[row] for row in ids)
        for number in numbers:
            rows = self._worlds[number].rows
            # A batch steps all of its rows: missing ones would step with actions nobody chose.
            if not positions.keys() >= set(rows):
                raise SpecError(
                    f"environments {[row for row in rows if row in positions]} are rows of one "
                    f"batch, whose rows {rows} must step together; send actions for all of them, "
                    "or set num_batches to make more batches (0 gives each environment its own "
                    "stream)"
                )
        batch = self._batch(actions, ids, idle)
        sent: dict[int, Actions] = {}
        for number in numbers:
            world = self._worlds[number]
            # The caller may pass rows in any order; a world has its own.
            order = [positions[row] for row in world.rows]
            sent[number] = {name: values[order] for name, values in batch.items()}
            world.under_way = world.rows
        with self._failing(sent):
            self.pool.send(sent)
        self._raise()

    def receive(self, minimum: int, maximum: int | None, rows: Rows) -> npt.NDArray[np.int64]:
        """Wait for rows with pending steps; see `EnvironmentPool.receive`."""
        self.pool.taken, self._delivered = [], ()
        check_count(minimum, maximum, len(self._busy()))
        answers = self._answers(rows)
        while len(self._arrived) < minimum:
            with self._failing():
                self.pool.receive(1, None, answers)
            self._raise()
        # Recorded before they leave `_arrived`: an interrupt here loses them; see `_interrupted`.
        self._delivered = delivered = list(self._arrived)[:maximum]
        for row in delivered:
            del self._arrived[row]
        return np.array(delivered, np.int64)

    def reset(
        self,
        settings: Mapping[int, Mapping[str, Any]],
        rows: Rows,
        adopt: Callable[[bool], None],
    ) -> None:
        """Begin a sequence in some rows; see `EnvironmentPool.reset`."""
        self.pool.taken, self._delivered = [], ()
        by_world: dict[int, dict[int, Mapping[str, Any]]] = {}
        for row, own in settings.items():
            try:
                # Everything is packed before anything is sent.
                by_world.setdefault(self._of[row], {})[row] = pack_settings(own)
            except SpecError as error:
                raise SpecError(f"environment {row} at {self.addresses[row]}: {error}") from error
        requests: dict[int, list[dict[str, Any]]] = {}
        for number, of_rows in by_world.items():
            world = self._worlds[number]
            of_places = dict(zip(world.places(of_rows), of_rows.values(), strict=True))
            requests[number] = reset_settings(of_places, len(world.rows))
        answers = self._answers(rows)
        # Pending steps are answered first; the answers of other rows in these worlds are kept.
        with self._failing():
            self.pool.finish(by_world, answers)
        with self._failing():
            for number, of_rows in by_world.items():
                self._worlds[number].under_way = list(of_rows)
                self._worlds[number].unseen.difference_update(of_rows)
            for row in settings:
                self._arrived.pop(row, None)
                self._failures.pop(row, None)
            for number, earlier in requests.items():
                adaptor = self.pool.environments[number]
                # Rows with different settings take one Reset each; the last one begins the
                # sequences.
                for each in earlier[:-1]:
                    adaptor._finish_reset(adaptor._start_reset(each))
            self.pool.reset(
                {number: each[-1] for number, each in requests.items()},
                answers,
                adopt,
            )
        for row in settings:
            self._arrived.pop(row, None)
        self._raise()

    def _interrupted(self, error: BaseException) -> None:
        lost = {self._of[row] for row in self._delivered if row not in self._arrived}
        self.pool.interrupted(error, lost)

    def idle(self, ids: Iterable[int]) -> set[int]:
        """Return the rows among `ids` that have no running sequence."""
        found: set[int] = set()
        for world in self._worlds:
            if not world.is_running.all():
                found.update(world.rows[place] for place in np.flatnonzero(~world.is_running))
        return found.intersection(ids)

    def _is_idle(self) -> bool:
        return not self._arrived and not any(world.under_way for world in self._worlds)

    def _busy(self) -> set[int]:
        """Return the rows with a pending step or an unread result."""
        return {*self._arrived, *(row for world in self._worlds for row in world.under_way)}

    def check_idle(self, ids: Iterable[int]) -> None:
        """Raise SpecError if any of the given rows has a pending step."""
        check_not_busy(self._busy(), ids)

    def _batch(
        self, actions: Mapping[str, Any], ids: Sequence[int], idle: Collection[int]
    ) -> dict[str, npt.NDArray[Any]]:
        batch = batch_of_actions(actions, self.adaptors[0].action_rows, len(ids))
        # A vector environment receives its actions unchanged, also after an episode.
        if idle and self.adaptors[0].has_row_errors:
            places = [place for place, row in enumerate(ids) if row in idle]
            for name, values in batch.items():
                batch[name] = values.copy()
                batch[name][places] = _any_value(self.adaptors[0].action_rows[name])
        return batch

    def _blame(self, sent: Mapping[int, Actions]) -> None:
        """Raise SpecError for the first row whose action in `sent` is invalid."""
        for number, action in sent.items():
            for place, row in enumerate(self._worlds[number].rows):
                try:
                    self.adaptors[number].check_row(action, place)
                except SpecError as error:
                    at = self.addresses[row]
                    raise SpecError(f"environment {row} at {at}: {error}") from error

    @contextlib.contextmanager
    def _failing(self, sent: Mapping[int, Actions] = _NOTHING) -> Iterator[None]:
        """Return a context that records the rows of each world that fails within the context.

        After an error, if the step of a world was not sent, or an interrupt lost its answer, no
        row of that world has a pending step. A SpecError identifies the first row whose action
        does not conform.

        Args:
          sent: the actions for each world, by the world's number.
        """
        try:
            yield
        except BaseException as error:
            if not self._is_of_rows(error, sent):
                raise

    def _is_of_rows(self, error: BaseException, sent: Mapping[int, Actions]) -> bool:
        """Record the rows of failed worlds, and return whether `error` lists failed worlds."""
        failures = error.failures if isinstance(error, EnvironmentsFailedError) else {}
        for number, failure in failures.items():
            # A world fails as a whole; callers know only rows.
            self._failures.update(dict.fromkeys(self._worlds[number].under_way, failure))
        for number, world in enumerate(self._worlds):
            if number not in self.pool.in_turn:
                # The pool has no pending step for it: the step was not sent, or its answer is lost.
                world.under_way = []
        if isinstance(error, SpecError):
            self._blame(sent)
        return isinstance(error, EnvironmentsFailedError)

    def _raise(self) -> None:
        failures, self._failures = self._failures, {}
        if failures:
            raise EnvironmentsFailedError(failures, {row: self.addresses[row] for row in failures})

    def _answers(self, rows: Rows) -> _Answers:
        """Return a consumer that passes the rows in the worlds' answers to `rows`."""
        # A `BatchAdaptor` reads all of its steps, so no unread MID steps arrive.
        return _Answers(functools.partial(self._put, rows), rows.put_mid_steps)

    def _put(self, all_rows: Rows, number: int, timestep: dm_env.TimeStep) -> bool:
        """Store the answer of a world, and return whether any row now begins a sequence."""
        world = self._worlds[number]
        if self.pool.environments[number].interruption is not None:
            return self._put_lost(all_rows, world, timestep)
        rows, world.under_way = world.under_way, []
        # Unseen sequences are ended: the caller must receive a FIRST step of its own.
        begins = [row for row in rows if row in world.unseen] if world.unseen else []
        try:
            failed = self._take(world, rows, timestep)
            if failed or begins:
                rows = [row for row in rows if row not in failed and row not in begins]
                for row in begins:
                    failed.pop(row, None)
                self._failures.update(failed)
            if len(rows) == len(world.rows):
                ended = all_rows.put_rows(world.at, None, timestep)
            else:
                ended = rows and all_rows.put_rows(np.array(rows), world.places(rows), timestep)
        except Exception as error:
            self._failures.update(dict.fromkeys(rows, error))
        else:
            if ended:
                begins += ended
                rows = [row for row in rows if row not in ended]
            # With 4,096 rows, a step takes 0.1 ms less if their dict is not made each time.
            self._arrived.update(world.all if rows is world.rows else dict.fromkeys(rows))
        return bool(begins) and self._begin(number, begins)

    def _begin(self, number: int, rows: list[int]) -> bool:
        """End the sequences of rows. The next step of the world begins their next sequences."""
        world, adaptor = self._worlds[number], self.adaptors[number]
        world.under_way = rows
        mask = {batches.RESET_MASK: world.mask(rows)} if len(rows) < len(world.rows) else {}
        adaptor._finish_reset(adaptor._start_reset(mask))
        world.unseen.difference_update(rows)
        return True

    def _take(
        self, world: _World, rows: list[int], timestep: dm_env.TimeStep
    ) -> dict[int, Exception]:
        """Record the state of all rows of a world, and return the errors of the failed rows."""
        kinds = timestep.observation[batches.STEP_TYPE]
        if kinds.shape != world.is_running.shape:
            raise ProtocolError(
                f"the number of rows in a batch has changed from {len(world.rows)} to {len(kinds)}"
            )
        if not world.has_begun:
            world.has_begun = True
            world.unseen = {*world.rows} - {*rows}
        # Most steps have no LAST row, and need no new array.
        if _LAST in kinds.tobytes() and not self.follows_at_once:
            world.is_running = kinds != _LAST
        else:
            world.is_running.fill(True)
        if world.unseen:
            world.is_running[world.places(world.unseen)] = False
        text = timestep.observation.get(batches.ROW_ERRORS, "")
        # Without a further check: the adaptor has made it.
        failed = batches.row_errors(text, len(kinds)) if text else {}
        return {world.rows[place]: _row_error(error) for place, error in failed.items()}

    def _put_lost(self, all_rows: Rows, world: _World, timestep: dm_env.TimeStep) -> bool:
        """Store the TimeStep of a lost world, and return whether its rows restart immediately.

        Running sequences end. Rows whose sequence had already ended begin the next sequence with
        this step.
        """
        # As its caller has seen it: an interrupted call may have read the end of a sequence.
        kinds = timestep.observation[batches.STEP_TYPE]
        lost = [
            row
            for row, kind in zip(world.rows, kinds, strict=True)
            if row not in world.unseen and (kind != _LAST or self.follows_at_once)
        ]
        world.has_begun = False
        world.is_running = np.zeros(len(world.rows), np.bool_)
        world.unseen = set()
        begins = {*world.under_way}.difference(lost)
        for row, place in zip(lost, world.places(lost), strict=True):
            if all_rows.put_lost(row, _row(timestep, place)):
                begins.add(row)
            else:
                self._arrived[row] = None
        world.under_way = [row for row in world.rows if row in begins]
        return bool(begins)


def _any_value(spec: specs.Array) -> Any:
    """Return a value that conforms to a spec."""
    if isinstance(spec, specs.BoundedArray):
        return spec.minimum
    return spec.dtype.type(0) if spec.dtype.kind in "biuf" else ""


def _row(timestep: dm_env.TimeStep, place: int) -> dm_env.TimeStep:
    """Return the LAST TimeStep of one row, whose arrays are shared with no other TimeStep."""

    def row(values: Any) -> Any:
        return np.copy(values[place])[()]

    observation = {
        name: row(values) for name, values in timestep.observation.items() if np.ndim(values) > 0
    }
    return dm_env.TimeStep(
        dm_env.StepType.LAST, row(timestep.reward), row(timestep.discount), observation
    )


def _row_error(text: str) -> DmEnvRpcError:
    """Return the error that a separate environment would raise for the error message `text`."""
    message = f"the environment failed in a step request: {text}"
    return DmEnvRpcError(status_pb2.Status(code=code_pb2.INTERNAL, message=message))
