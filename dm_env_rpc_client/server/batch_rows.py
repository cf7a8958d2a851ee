"""The rows of a batch of dm_env environments: their arrays, and what fills a row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.request_errors import environment_error
from dm_env_rpc_client.server.worlds.flat_specs import FlatSpecs, check_taken
from dm_env_rpc_client.server.worlds.step_types import begun, next_step_type
from dm_env_rpc_client.system.wrong_returns import check_time_step
from dm_env_rpc_client.tensors import nesting, structures
from dm_env_rpc_client.tensors.batch_specs import batch_spec
from dm_env_rpc_client.tensors.columns import Column
from dm_env_rpc_client.tensors.structures import leaves

_FIRST, _MID, _LAST = dm_env.StepType

_TAKEN = (batches.STEP_TYPE, batches.ROW_ERRORS)


class EnvironmentRows:
    """The arrays of a batch of dm_env environments; see `batch.Rows`.

    Args:
      environment: has the specs of all rows.
      count: the number of rows.
    """

    mode = "NEXT_STEP"

    def __init__(self, environment: dm_env.Environment, count: int):
        self.has_begun = np.zeros(count, np.bool_)
        self._single = FlatSpecs.of(environment, getattr(environment, "default_actions", {}))
        self.action_spec = batched(environment.action_spec(), count)
        self._flatten_action = structures.flattener(self.action_spec, "action")
        self._action_shapes = [spec.shape for spec in leaves(self.action_spec)]
        self._observation_spec = batched(environment.observation_spec(), count)
        self.reward_spec = batched(environment.reward_spec(), count)
        self.discount_spec = batched(environment.discount_spec(), count)
        # What the last step of each row was: LAST where no sequence is running.
        self._kinds: list[dm_env.StepType] = [_LAST] * count
        # Written in place, so that the structures are made once.
        self._sends_discount = self._single.sends_discount
        names = iter(self._single.observation_names)
        # In the order in which `FlatSpecs.values` has the values of a row.
        self._columns: list[Column] = []
        observation, self._reward = (
            columns(spec, count, names, self._columns)
            for spec in (environment.observation_spec(), environment.reward_spec())
        )
        if self._sends_discount:
            spec = environment.discount_spec()
            self._discount = columns(spec, count, names, self._columns)
        else:
            self._discount = np.ones(count)
        self._values = named(observation, "observation", _TAKEN)
        self._step_type = np.zeros(count, np.uint8)
        self.observation_spec = {
            **named(self._observation_spec, "observation", _TAKEN),
            batches.STEP_TYPE: specs.BoundedArray((count,), np.uint8, 0, 2, batches.STEP_TYPE),
            batches.ROW_ERRORS: specs.StringArray((), name=batches.ROW_ERRORS),
        }

    def properties(
        self, environments: Sequence[dm_env.Environment]
    ) -> Mapping[str, Callable[[], Any]]:
        """Returns none."""
        return {}

    def fits(self, environment: dm_env.Environment) -> bool:
        """Returns True: what rows send is in their specs."""
        return True

    def actions(self, action: Any) -> list[Any]:
        """Returns the arrays [N, ...] of actions, in the order of their names.

        A default action is the same for all rows, and has no rows itself.
        """
        given = zip(self._flatten_action(action), self._action_shapes, strict=True)
        return [
            value if np.shape(value) == shape else np.broadcast_to(value, shape)
            for value, shape in given
        ]

    def begin(self, index: int, environment: dm_env.Environment) -> None:
        """Begins a sequence; what this raises leaves the row as it was."""
        self._kinds[index] = _LAST  # If this fails, the next step begins a sequence.
        timestep = environment.reset()
        try:
            self._put(index, begun(environment, timestep), _FIRST)
        except AttributeError:
            check_time_step(environment, "reset", timestep)
            raise
        self.has_begun[index] = True

    def step(self, index: int, environment: dm_env.Environment, actions: list[Any]) -> None:
        """Takes a step, or begins a sequence if none is running; as `begin`."""
        if self._kinds[index] is _LAST:
            self.begin(index, environment)
            return
        timestep = environment.step(self._single.action_of_row(actions, index))
        try:
            kind = timestep.step_type
            if kind is not _MID:
                kind = next_step_type(environment, timestep)
            self._put(index, timestep, kind)
        except AttributeError:
            check_time_step(environment, "step", timestep)
            raise

    def _put(self, index: int, timestep: dm_env.TimeStep, kind: dm_env.StepType) -> None:
        """Puts the TimeStep of an environment into its row.

        Raises:
          RuntimeError: a value does not conform to its spec; the row is as it was.
        """
        was_mid = self._kinds[index] is _MID
        if kind is _LAST:
            # Also if a value does not conform: the sequence of the environment has ended.
            self._kinds[index] = kind
        values = self._single.values(timestep)
        columns = self._columns
        try:
            _fit(values, columns)
        except SpecError as error:
            raise environment_error(error) from error
        for column, value in zip(columns, values, strict=True):
            column.array[index] = value
        if kind is _MID and was_mid:
            return  # The kind and a default discount are those of the last step.
        if not self._sends_discount:
            # Otherwise `values` has seen that it is 1 or 0.
            discount = timestep.discount
            self._discount[index] = kind is not _LAST if discount is None else discount
        self._step_type[index] = self._kinds[index] = kind

    def timestep(self, kind: dm_env.StepType, failures: dict[int, Exception]) -> dm_env.TimeStep:
        """Returns the TimeStep of all rows, whose arrays the next `put` overwrites."""
        observation = {
            **self._values,
            batches.STEP_TYPE: self._step_type,
            batches.ROW_ERRORS: batches.row_errors_text(failures) if failures else "",
        }
        return dm_env.TimeStep(kind, self._reward, self._discount, observation)


def _fit(values: list[Any], columns: Sequence[Column]) -> None:
    for place, (column, value) in enumerate(zip(columns, values, strict=True)):
        if type(value) is np.ndarray:  # `Column.taken`, without the call.
            if value.dtype != column.known_dtype or value.shape != column.shape:
                values[place] = column.fitted(value)
        elif type(value) is not column.type:
            values[place] = column.fitted(value)


def batched(structure: Any, count: int) -> Any:
    """Returns a structure of the specs of one row as that of `count` rows."""
    if structure is None:
        return None
    # Its keys may be of types that cannot be sorted, as dm-tree would sort them.
    rows = (batch_spec(spec, count) for spec in leaves(structure))
    return structures.nester(structure)(rows)


def columns(structure: Any, count: int, names: Iterator[str], made: list[Column]) -> Any:
    """Makes the rows of a structure of specs.

    Args:
      structure: the specs of one row; None for none.
      count: the number of rows.
      names: by which errors name the values.
      made: gets the columns, in the order of `structures.leaves`.

    Returns:
      The arrays of the columns, in this structure.
    """
    if structure is None:
        return None

    def column(spec: specs.Array) -> npt.NDArray[Any]:
        made.append(Column(spec, (count,), f"observation {next(names)!r}"))
        return made[-1].array

    arrays = list(map(column, leaves(structure)))
    return structures.nester(structure)(iter(arrays))


def named(structure: Any, single: str, taken: Collection[str]) -> Mapping[Any, Any]:
    """Returns a structure as a mapping, in which other names find a place.

    Args:
      structure: of specs or values.
      single: the name of one that is a leaf, such as "observation".
      taken: the other names, if they are still to be checked; SpecError if the structure has one.
    """
    if structure is None:
        return {}
    parts = structures.parts_by_name(structure)
    if parts is None and not isinstance(structure, list | tuple):
        return {single: structure}
    if parts is None:
        parts = {str(index): part for index, part in enumerate(structure)}
    if taken:
        levels = (str(key).partition(nesting.SEPARATOR)[0] for key in parts)
        check_taken(levels, single, dict.fromkeys(taken, "a name that every batch has itself"))
    return parts
