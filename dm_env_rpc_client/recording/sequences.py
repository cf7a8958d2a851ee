"""The sequences of steps that have begun: of an agent, or of the rows of a batched world.

In a batched world the stream's state says nothing about rows. Their sequences begin and end with
the observation `step_type`; the rules are those of the guide "Serve a batch".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_env_specs

from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.recording.bounded_records import FileBudget
from dm_env_rpc_client.recording.episode import EPISODE_BYTES, TIMESTEP_BYTES, Episode, size_of
from dm_env_rpc_client.recording.reader import RecordedConnection
from dm_env_rpc_client.tensors.batch_specs import row_tensor_spec
from dm_env_rpc_client.tensors.spec_manager import SpecManager
from dm_env_rpc_client.tensors.specs import tensor_spec_to_dm_env_spec

_FIRST, _MID, _LAST = dm_env.StepType

_ROW_BYTES = 32
"""What is kept for a row beside its TimeSteps."""


class Specs(NamedTuple):
    """The specs of an episode, by flat name."""

    actions: Mapping[str, dm_env_specs.Array]
    observations: Mapping[str, dm_env_specs.Array]


class Sequences:
    """The episodes of a connection that have not ended, by row; None is a whole world.

    Args:
      connection: the connection.
      budget: what reading the file may still take.
    """

    def __init__(self, connection: RecordedConnection, budget: FileBudget):
        self._connection = connection
        self._budget = budget
        self._running: dict[int | None, Episode] = {}

    @property
    def unfinished(self) -> list[Episode]:
        """The episodes."""
        return list(self._running.values())

    def __contains__(self, row: int | None) -> bool:
        return row in self._running

    def begin(self, row: int | None, world_name: str, specs: Specs) -> None:
        """Begins an episode."""
        self._running[row] = Episode(self._connection, world_name, 0, *specs, row=row)
        self._hold(row, EPISODE_BYTES)

    def add(
        self,
        row: int | None,
        timestep: dm_env.TimeStep,
        action: dict[str, Any],
        nanoseconds: int,
        size: int,
    ) -> None:
        """Adds a TimeStep, the action that led to it, when it came, and what both take."""
        self._hold(row, size)
        episode = self._running[row]
        episode.flat_timesteps.append(timestep)
        episode.flat_actions.append(action)
        episode.nanoseconds.append(nanoseconds)

    def end(self, row: int | None, end: Literal["terminated", "interrupted"]) -> Episode:
        """Ends an episode, and returns it."""
        episode = self._running.pop(row)
        episode.end = end
        return episode

    def end_all(self) -> list[Episode]:
        """Ends all episodes, which are interrupted, and returns them."""
        return [self.end(row, "interrupted") for row in list(self._running)]

    def _hold(self, row: int | None, size: int) -> None:
        self._budget.hold(size)
        self._running[row].held_bytes += size


class _Begun(NamedTuple):
    """What a row has observed with its LAST step, with which the next sequence may have begun."""

    observation: dict[str, Any]
    nanoseconds: int
    size: int


class RowSequences:
    """Finds the sequences of the rows of a batched world.

    Args:
      sequences: gets them.
      specs: of one row.
      count: the number of rows.
      budget: what reading the file may still take.
    """

    def __init__(self, sequences: Sequences, specs: Specs, count: int, budget: FileBudget):
        self._sequences = sequences
        self._specs = specs
        self._count = count
        self._budget = budget
        # The rows that have had a step; None before the first one of the world.
        self._seen: npt.NDArray[np.bool_] | None = None
        # The rows in which a Reset begins sequences; None for all.
        self._mask: npt.NDArray[np.bool_] | None = None
        self._has_reset = False
        self._begun: dict[int, _Begun] = {}

    @classmethod
    def of(
        cls,
        sequences: Sequences,
        actions: SpecManager,
        observations: SpecManager,
        budget: FileBudget,
    ) -> RowSequences | None:
        """Returns those of a world with these specs; None if it is not batched.

        Raises:
          SpecError: the specs break the rules for batches.
        """
        found = observations.specs_by_name
        count = batches.num_rows(found)
        if count is None:
            return None
        names = [n for n, spec in found.items() if n not in batches.OF_BATCH and spec.shape]
        names_of_actions = [n for n in actions.specs_by_name if n != batches.STEP_MASK]
        if batches.STEP_MASK in actions.specs_by_name:
            mask = tensor_spec_to_dm_env_spec(actions.name_to_spec(batches.STEP_MASK))
            if mask.dtype != np.bool_ or mask.shape != (count,):
                raise SpecError(
                    f"action {batches.STEP_MASK!r} of the batch is {mask.dtype} "
                    f"{list(mask.shape)}; expected bool [{count}]"
                )

        def of(manager: SpecManager, names: list[str]) -> dict[str, dm_env_specs.Array]:
            rows = {n: row_tensor_spec(manager.name_to_spec(n), count) for n in names}
            return {n: tensor_spec_to_dm_env_spec(spec) for n, spec in rows.items()}

        try:
            specs = Specs(of(actions, names_of_actions), of(observations, names))
        except SpecError:
            return None
        return cls(sequences, specs, count, budget)

    @property
    def spec_count(self) -> int:
        """How many specs a row has."""
        return sum(map(len, self._specs))

    def reset(self, mask: Any) -> list[Episode]:
        """Takes a Reset; returns the episodes that it ends.

        Args:
          mask: the rows in which the next step begins a sequence, bool [N]; None for all.
        """
        if mask is None:
            self._mask, self._has_reset = None, True
            return self._sequences.end_all()
        array = np.asarray(mask)
        if array.dtype != np.bool_ or array.shape != (self._count,):
            raise ProtocolError(
                f"the setting {batches.RESET_MASK!r} is {array.dtype} {list(array.shape)}; "
                f"expected bool [{self._count}], as there are rows"
            )
        if self._has_reset:
            mask = None if self._mask is None else self._mask | array
        self._mask, self._has_reset = mask, True
        return [
            self._sequences.end(row, "interrupted")
            for row in map(int, np.flatnonzero(array))
            if row in self._sequences
        ]

    def forget(self) -> None:
        """The world was left, or begins anew."""
        self._seen = self._mask = None
        self._has_reset = False
        self._release()

    def step(
        self,
        world_name: str,
        is_first: bool,
        action: Mapping[str, Any],
        values: Mapping[str, Any],
        nanoseconds: int,
    ) -> list[Episode]:
        """Takes a step; returns the episodes that it ends.

        Args:
          world_name: of the world.
          is_first: whether it is the first one of the stream, or after a Reset.
          action: arrays [N, ...] by flat name.
          values: the observations, the same.
          nanoseconds: when they were received.

        Raises:
          ProtocolError: the values are not those of a batched world.
        """
        if batches.STEP_TYPE not in values:
            raise ProtocolError(
                f"it does not have the observation {batches.STEP_TYPE!r}, as the steps before had"
            )
        batches.check_step(values, self._count)
        kinds = values[batches.STEP_TYPE]
        if self._seen is None:
            self._budget.hold(_ROW_BYTES * len(kinds))
            self._seen = np.zeros(len(kinds), np.bool_)
        taken = self._taken(is_first, kinds, action, values.get(batches.ROW_ERRORS, ""))
        self._seen |= taken
        arrays = {name: values[name] for name in self._specs.observations if name in values}
        actions = {name: action[name] for name in self._specs.actions if name in action}
        size = TIMESTEP_BYTES + sum(
            size_of(array) // len(kinds) + size_of(0)
            for array in [*arrays.values(), *actions.values()]
        )
        ended: list[Episode] = []
        for row in map(int, np.flatnonzero(taken)):
            kind = dm_env.StepType(int(kinds[row]))
            if kind is _FIRST:
                if row in self._sequences:
                    ended.append(self._sequences.end(row, "interrupted"))
                self._release(row)
                self._sequences.begin(row, world_name, self._specs)
            elif row not in self._sequences:
                self._begin_at_last(row, world_name, kind)
            timestep = _row(arrays, row, kind)
            own = {} if kind is _FIRST else {n: _copy(array[row]) for n, array in actions.items()}
            self._sequences.add(row, timestep, own, nanoseconds, size)
            if kind is _LAST:
                has_terminated = timestep.discount is not None and not np.any(timestep.discount)
                end = self._sequences.end(row, "terminated" if has_terminated else "interrupted")
                ended.append(end)
                self._budget.hold(size)
                self._begun[row] = _Begun(timestep.observation, nanoseconds, size)
        return ended

    def _taken(
        self, is_first: bool, kinds: Any, action: Mapping[str, Any], errors: Any
    ) -> npt.NDArray[np.bool_]:
        """Returns the rows that have stepped, bool [N]; the others have their last values."""
        assert self._seen is not None, "the first step has come"
        taken = np.ones(len(kinds), np.bool_)
        if is_first:
            if self._mask is not None:
                taken = self._mask | ~self._seen
            # No sequence has begun in a row of another kind.
            taken = taken & (kinds == _FIRST)
            self._mask, self._has_reset = None, False
        elif batches.STEP_MASK in action:  # Of a client from before all rows stepped together.
            taken = action[batches.STEP_MASK].copy()
        for row in batches.row_errors(errors, self._count):
            taken[row] = False
        return taken

    def _begin_at_last(self, row: int, world_name: str, kind: dm_env.StepType) -> None:
        """Begins the sequence that has begun with the LAST step of the one before."""
        begun = self._begun.get(row)
        if begun is None:
            raise ProtocolError(
                f"the step of row {row} is {kind.name}, but its sequence never began"
            )
        observation = {name: _copy(value) for name, value in begun.observation.items()}
        self._sequences.begin(row, world_name, self._specs)
        first = dm_env.TimeStep(_FIRST, None, None, observation)
        self._sequences.add(row, first, {}, begun.nanoseconds, begun.size)
        self._release(row)

    def _release(self, *rows: int) -> None:
        """Forgets what rows, or all, have observed with their LAST steps."""
        for row in rows or list(self._begun):
            begun = self._begun.pop(row, None)
            if begun is not None:
                self._budget.release(begun.size)


def _row(arrays: Mapping[str, Any], row: int, kind: dm_env.StepType) -> dm_env.TimeStep:
    """Returns the TimeStep of a row, with arrays of its own."""
    values = {name: _copy(array[row]) for name, array in arrays.items()}
    reward, discount = values.pop(REWARD, None), values.pop(DISCOUNT, None)
    if kind is _FIRST:
        reward = discount = None
    return dm_env.TimeStep(kind, reward, discount, values)


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
