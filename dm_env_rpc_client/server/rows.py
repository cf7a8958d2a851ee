"""The arrays of a batch, each row of which is filled by the steps of one environment."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.errors import environment_error
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.worlds.flat_specs import (
    DEFAULT_DISCOUNT,
    FlatSpecs,
    Specs,
    check_taken,
    specs_of,
)
from dm_env_rpc_client.server.worlds.world import begun, next_step_type
from dm_env_rpc_client.system.foreign_environments import check_time_step
from dm_env_rpc_client.tensors import nesting, structures
from dm_env_rpc_client.tensors.columns import VARIABLE, Column, batch_spec
from dm_env_rpc_client.tensors.structures import leaves

_FIRST, _MID, _LAST = dm_env.StepType


class Infos(Protocol):
    """The infos and errors of a batch's rows, collected for the answer that the rows share.

    Attributes:
      name: the name of the observation with their text.
    """

    name: str

    def of(self, count: int) -> Infos:
        """Return empty infos for `count` rows, with the same layout as these infos."""

    def encoded(self, both: npt.NDArray[np.bool_]) -> tuple[str, dict[int, Exception]]:
        """Return the infos as a string, and the errors for infos that cannot be sent; clear both.

        Args:
          both: the rows whose sequence was both terminated and truncated.
        """

    def taken(self) -> tuple[list[tuple[int, Any]], dict[int, Exception]]:
        """Return the infos, each with the index of its row, and the errors; clear both.

        Other `Infos` with the same layout, possibly in another process, accept the returned infos
        in `put_taken`.
        """

    def put_taken(self, index: int, said: Any) -> None:
        """Record the infos of a row. Rows must be recorded in row order."""


class Offers(Protocol):
    """The properties that a special kind of row offers, whichever process hosts the rows."""

    def properties(
        self, environments: Sequence[dm_env.Environment]
    ) -> Mapping[str, Callable[[], Any]]:
        """Return a mapping of keys to functions that return the values of properties.

        Args:
          environments: the environments of all rows, or their stand-ins; see `in_thread_of`.
        """

    def offer_calls(
        self,
        properties: Properties,
        environments: Sequence[dm_env.Environment],
        callable_names: Sequence[str],
        settable_names: Sequence[str],
    ) -> None:
        """Add properties for the methods and attributes of rows that clients may use."""


@dataclasses.dataclass(frozen=True)
class RowKind:
    """The specification of each row of a batch. It can be sent to another process.

    Attributes:
      action_spec: as in dm_env.Environment, like the next three specs.
      observation_spec: the same.
      reward_spec: the same.
      discount_spec: the same.
      names: the names of the observations, the reward and the discount in errors.
      has_reward: whether the reward follows its spec; otherwise it is a float64.
      has_discount: the same for the discount.
      mode: the name of the autoreset mode.
      infos: the layout of the rows' infos, or None if there are no infos.
      offers: the properties of rows, or None if there are none.
      form: a layout, such as that of infos, that all rows of a batch share, like their specs.
    """

    action_spec: Any
    observation_spec: Any
    reward_spec: Any
    discount_spec: Any
    names: Sequence[str]
    has_reward: bool = False
    has_discount: bool = False
    mode: str = "NEXT_STEP"
    infos: Infos | None = None
    offers: Offers | None = None
    form: Any = None

    @property
    def specs(self) -> Specs:
        """The specs of the actions, the observations, the reward and the discount."""
        return self.action_spec, self.observation_spec, self.reward_spec, self.discount_spec


class Rows:
    """The arrays of a batch.

    An environment with rows of a special kind offers `batch_rows(count, mode)`.

    Args:
      kind: the specification of each row.
      count: the number of rows.

    Attributes:
      kind: as the argument.
      num_envs: the number of rows.
      has_begun: the rows that have a value, bool [N].
      arrays: all arrays [N, ...], in the same order for all rows of the kind.
      infos: the infos of the rows, or None if there are none.
      action_spec: as in dm_env.Environment, but each of shape [N, ...], like the next three specs.
      observation_spec: the same, as a mapping.
      reward_spec: the same.
      discount_spec: the same.
    """

    def __init__(self, kind: RowKind, count: int):
        self.kind = kind
        self.num_envs = count
        self.has_begun = np.zeros(count, np.bool_)
        infos = None if kind.infos is None else kind.infos.of(count)
        self.action_spec = batched(kind.action_spec, count)
        self.reward_spec = batched(kind.reward_spec, count)
        own_discount = DEFAULT_DISCOUNT if kind.discount_spec is None else kind.discount_spec
        self.discount_spec = batched(own_discount, count)
        self.observation_spec = observation_specs(
            batched(kind.observation_spec, count), count, None if infos is None else infos.name
        )
        # The state of each row's sequence; LAST means that none is running.
        self._kinds: list[dm_env.StepType] = [_LAST] * count
        # Written in place, so that the structures are built once and not in each step. The columns
        # are in the order of the leaves of a row.
        self._columns: list[Column] = []
        names = iter(kind.names)
        self._observation = columns(kind.observation_spec, count, names, self._columns)
        self._reward: Any = np.zeros(count)
        self._discount: Any = np.ones(count)
        plain = []
        if kind.has_reward:
            self._reward = columns(kind.reward_spec, count, names, self._columns)
        else:
            plain.append(self._reward)
        if kind.has_discount:
            self._discount = columns(kind.discount_spec, count, names, self._columns)
        else:
            plain.append(self._discount)
        self._step_type = np.zeros(count, np.uint8)
        # Whether a sequence was terminated and truncated.
        self._both = np.zeros(count, np.bool_)
        self.arrays: list[npt.NDArray[Any]] = [
            *(column.array for column in self._columns), *plain, self._step_type, self._both,
        ]  # fmt: skip
        self.infos = infos
        self._values = (
            {"observation": self._observation}
            if infos is not None
            else named(self._observation, "observation", ())
        )

    def fits(self, environment: Any) -> bool:
        """Return whether an environment can be a row of this kind."""
        return True

    def actions(self, action: Any) -> Any:
        """Convert actions of shape [N, ...] to the form that `step` accepts."""
        raise NotImplementedError

    def begin(self, index: int, environment: Any) -> None:
        """Begin a sequence in a row. An exception leaves the row unchanged."""
        raise NotImplementedError

    def step(self, index: int, environment: Any, actions: Any) -> None:
        """Step a row, or begin a sequence if none is running. An exception leaves it unchanged."""
        raise NotImplementedError

    def drop_infos(self) -> None:
        """Drop the infos of a step that has failed as a whole, which no client will receive."""
        if self.infos is not None:
            self.infos.taken()

    def timestep(
        self, kind: dm_env.StepType, failures: dict[int, Exception | str]
    ) -> dm_env.TimeStep:
        """Return the TimeStep of all rows; the next TimeStep may overwrite its arrays.

        Args:
          kind: the type of the TimeStep.
          failures: the exceptions raised by rows, or their texts; exceptions for infos that cannot
            be sent are added.
        """
        observation: dict[Any, Any] = {**self._values}
        if self.infos is not None:
            observation[self.infos.name], unsent = self.infos.encoded(self._both)
            failures.update(unsent)
        observation[batches.STEP_TYPE] = self._step_type
        observation[batches.ROW_ERRORS] = batches.row_errors_text(failures) if failures else ""
        return dm_env.TimeStep(kind, self._reward, self._discount, observation)


class EnvironmentRows(Rows):
    """The rows of a batch of dm_env environments.

    Args:
      environment: an environment with the specs of all rows.
      count: the number of rows.
    """

    def __init__(self, environment: dm_env.Environment, count: int):
        own = specs_of(environment)
        self._single = FlatSpecs(*own, getattr(environment, "default_actions", {}))
        self._sends_discount = self._single.sends_discount
        # In the order in which `FlatSpecs.values` has the values of a row.
        names = self._single.observation_names
        super().__init__(RowKind(*own, names, True, self._sends_discount), count)
        self._flatten_action = structures.flattener(self.action_spec, "action")
        self._action_shapes = [spec.shape for spec in leaves(self.action_spec)]
        self._action_of_row = self._single.action_of_row
        self._column_arrays = [column.array for column in self._columns]
        # The types of the values that the columns take unconverted, and the dtypes and shapes of
        # those that are arrays.
        self._types: list[type] = [column.type or np.ndarray for column in self._columns]
        self._shapes = [
            (place, column.known_dtype, column.shape)
            for place, column in enumerate(self._columns)
            if column.type is None
        ]
        # For the fast path of `step`, if the specs are one array, perhaps in a dict, and a float. A
        # row takes 0.6 us less (`python -m tests.benchmarks --only one-core-batched`).
        self._path, array = structures.single_leaf(own[1])
        is_usual = isinstance(array, specs.Array) and self._types[1:] == [float]
        self._usual: Any = self._columns[0] if is_usual and len(self._path) <= 1 else None
        self._dtype = None if self._usual is None else self._usual.known_dtype

    def actions(self, action: Any) -> list[Any]:
        """Return the arrays of actions, each of shape [N, ...], in the order of their names.

        A default action is the same for all rows, and has no rows itself.
        """
        given = zip(self._flatten_action(action), self._action_shapes, strict=True)
        return [
            value if np.shape(value) == shape else np.broadcast_to(value, shape)
            for value, shape in given
        ]

    def begin(self, index: int, environment: dm_env.Environment) -> None:
        """Begin a sequence in a row. An exception leaves the row unchanged."""
        self._kinds[index] = _LAST  # If this fails, the next step begins a sequence.
        timestep = environment.reset()
        try:
            self._put(index, begun(environment, timestep), _FIRST)
        except AttributeError:
            # Diagnosed only after a failure: a valid TimeStep needs no check.
            check_time_step(environment, "reset", timestep)
            raise
        self.has_begun[index] = True

    def step(self, index: int, environment: dm_env.Environment, actions: list[Any]) -> None:
        """Step a row, or begin a sequence if none is running. An exception leaves it unchanged."""
        was = self._kinds[index]
        if was is _LAST:
            self.begin(index, environment)
            return
        timestep = environment.step(self._action_of_row(actions, index))
        try:
            kind = timestep.step_type
            if kind is was is _MID:
                # The kind and a default discount have not changed since the last step.
                value, reward, discount = timestep.observation, timestep.reward, timestep.discount
                if self._path:
                    is_single = type(value) is dict and len(value) == 1
                    value = value.get(self._path[0]) if is_single else None
                if (
                    type(value) is np.ndarray
                    and value.dtype is self._dtype
                    and value.shape == self._usual.shape
                    and type(reward) is type(discount) is float
                    and discount == 1.0
                ):
                    self._usual.array[index], self._reward[index] = value, reward
                    return
                self._write(index, self._single.values(timestep))
                return
            if kind is not _MID:
                kind = next_step_type(environment, timestep)
            self._put(index, timestep, kind)
        except AttributeError:
            check_time_step(environment, "step", timestep)
            raise

    def _put(self, index: int, timestep: dm_env.TimeStep, kind: dm_env.StepType) -> None:
        """Copy the TimeStep of an environment into its row.

        Raises:
          RuntimeError: a value does not conform to its spec; the row is unchanged.
        """
        if kind is _LAST:
            # Also if a value does not conform: the sequence of the environment has ended.
            self._kinds[index] = kind
        self._write(index, self._single.values(timestep))
        if not self._sends_discount:
            # Where it has a spec, `values` has checked that it is 1 or 0.
            discount = timestep.discount
            self._discount[index] = kind is not _LAST if discount is None else discount
        self._step_type[index] = self._kinds[index] = kind

    def _write(self, index: int, values: list[Any]) -> None:
        """Copy values into a row; raise RuntimeError if one does not conform to its spec."""
        # The first tests of `Column.taken` without a call, for most values.
        if [*map(type, values)] != self._types:
            values = self._taken(values)
        else:
            for place, dtype, shape in self._shapes:
                value = values[place]
                if value.dtype is not dtype or value.shape != shape:
                    values = self._taken(values)
                    break
        # Only after all values conform: a row that fails stays as it was.
        for place, array in enumerate(self._column_arrays):
            array[index] = values[place]

    def _taken(self, values: list[Any]) -> list[Any]:
        """Return the values of a row as its columns take them, or raise RuntimeError."""
        try:
            return [column.taken(v) for column, v in zip(self._columns, values, strict=True)]
        except SpecError as error:
            raise environment_error(error) from error


def batched(structure: Any, count: int) -> Any:
    """Convert a structure of one row's specs to the specs of `count` rows.

    Raises:
      SpecError: a spec is of variable length.
    """
    if structure is None:
        return None

    def batched_spec(path: Sequence[Any], spec: specs.Array) -> specs.Array:
        if isinstance(spec, VARIABLE):
            name = nesting.SEPARATOR.join(map(str, path)) or spec.name
            raise SpecError(
                f"{name!r} is of variable length, but all rows of a batch must have the same "
                "shape; open a world for each environment instead"
            )
        return batch_spec(spec, count)

    # Without dm-tree, which sorts keys: these may be of types that cannot be sorted.
    rows = itertools.starmap(batched_spec, structures.leaves_with_path(structure))
    return structures.nester(structure)(rows)


def columns(structure: Any, count: int, names: Iterator[str], made: list[Column]) -> Any:
    """Create a column for each spec in a structure.

    Args:
      structure: the specs of one row; None for none.
      count: the number of rows.
      names: the names of the values in errors.
      made: the list to append the columns to, in the order of `structures.leaves`.

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


def observation_specs(
    observation: Any, count: int, infos: str | None, has_row_errors: bool = True
) -> dict[str, Any]:
    """Return the specs of the observations of a batch.

    Args:
      observation: the specs of the rows' observations, [N, ...] each.
      count: the number of rows, N.
      infos: the name of the rows' infos, next to which their observations are one level down;
        None for none.
      has_row_errors: whether a row may fail alone.

    Raises:
      SpecError: an observation of the rows has a name reserved for the batch.
    """
    own: dict[str, Any] = {
        batches.STEP_TYPE: specs.BoundedArray((count,), np.uint8, 0, 2, batches.STEP_TYPE)
    }
    if has_row_errors:
        own[batches.ROW_ERRORS] = specs.StringArray((), name=batches.ROW_ERRORS)
    if infos is not None:
        return {"observation": observation, infos: specs.StringArray((), name=infos), **own}
    return {**named(observation, "observation", tuple(own)), **own}


def named(structure: Any, single: str, taken: Collection[str]) -> Mapping[Any, Any]:
    """Return a structure as a mapping to which other names can be added.

    Args:
      structure: a structure of specs or values.
      single: the name for a structure that is a leaf, such as "observation".
      taken: the other names.

    Raises:
      SpecError: the structure contains one of the other names.
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
        check_taken(levels, single, dict.fromkeys(taken, "a name reserved for batches"))
    return parts
