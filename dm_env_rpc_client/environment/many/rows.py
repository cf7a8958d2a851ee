"""Values of several environments, stacked along a new first axis with one row per environment.

Rows of numbers, bools or strings that have the same shape form one array. Other rows, such as
arrays of variable length, form an array of objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.batches import STEP_TYPE
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD, MidSteps
from dm_env_rpc_client.tensors import casting
from dm_env_rpc_client.tensors.columns import VARIABLE, Column

Array: TypeAlias = npt.NDArray[Any]


def rows_at(indices: list[int]) -> slice | list[int]:
    """Return `indices` as an array index: a slice, which is faster, if they are consecutive."""
    first, after = indices[0], indices[0] + len(indices)
    if indices[-1] == after - 1 and indices == list(range(first, after)):
        return slice(first, after)
    return indices


def selector(indices: Sequence[int]) -> slice | Array:
    """Return `indices` as an array index, or as a slice if they are evenly spaced."""
    steps = {after - before for before, after in itertools.pairwise(indices)}
    if len(steps) <= 1 and (step := max(steps, default=1)) > 0:
        return slice(indices[0], indices[-1] + 1, step)
    return np.array(indices)


def split_action(
    batch: Mapping[str, Any], single: Mapping[str, specs.Array], count: int
) -> list[dict[str, Any]]:
    """Split a batch of actions into one action per environment.

    Args:
      batch: arrays [count, ...] by flat name; any of the names may be omitted.
      single: the specs of one environment's actions, by flat name.
      count: the number of environments.

    Returns:
      The action of each environment, by flat name.

    Raises:
      SpecError: a value has no rows or the wrong number of them, or does not fit the dtype of
        its spec. Names, shapes and bounds of the rows are not checked here.
    """
    actions: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in batch.items():
        rows = _to_rows(value, single.get(name), f"action {name!r}", count)
        for action, row in zip(actions, rows, strict=True):
            action[name] = row
    return actions


def batch_of_actions(
    batch: Mapping[str, Any], single: Mapping[str, specs.Array], count: int
) -> dict[str, Array]:
    """Return a batch of actions as arrays; see `split_action` for arguments and errors."""
    arrays = {}
    for name, value in batch.items():
        spec, where = single.get(name), f"action {name!r}"
        array = _array_of_rows(value, spec, where, count)
        _check_count(len(array), count, where)
        arrays[name] = array
    return arrays


def _array_of_rows(value: Any, spec: specs.Array | None, where: str, count: int) -> Array:
    """Return actions as an array, cast to the dtype of their spec if the spec is numeric."""
    dtype = None if spec is None else spec.dtype
    if type(value) is np.ndarray and value.dtype == dtype and dtype.kind in "biuf":
        array = value  # As in most steps: `as_array` and `exact_cast` would return it.
    else:
        array = casting.as_array(value, where)
        if dtype is not None and dtype.kind in "biuf":
            array = casting.exact_cast(array, dtype, where)
    if array.ndim == 0:
        raise SpecError(f"{where}: expected {count} values, one for each environment, got one")
    return array


def _check_count(found: int, count: int, where: str) -> None:
    if found != count:
        raise SpecError(f"{where}: expected {count} rows, one for each environment, got {found}")


def _to_rows(value: Any, spec: specs.Array | None, where: str, count: int) -> list[Any]:
    is_listed = isinstance(value, list | tuple) or (
        isinstance(value, np.ndarray) and value.dtype == object
    )
    if is_listed and (spec is None or spec.dtype.kind not in "biuf" or isinstance(spec, VARIABLE)):
        rows: list[Any] = list(value)
    else:
        array = _array_of_rows(value, spec, where, count)
        if array.ndim == 1 and array.dtype.kind in "iu":
            rows = array.tolist()  # Integers of Python are encoded faster than NumPy's.
        else:
            rows = [array[index, ...] for index in range(len(array))]
    _check_count(len(rows), count, where)
    return rows


class RowSpecs(NamedTuple):
    """The specs of one row; action and observation specs are keyed by flat name."""

    actions: Mapping[str, specs.Array]
    observations: Mapping[str, specs.Array]
    reward: specs.Array
    discount: specs.Array


class Rows:
    """The last TimeStep of each environment, updated by the answers from streams and batches.

    Args:
      specs: the specs of one environment.
      count: the number of environments.
      copies: whether callers own the returned observations and may change them.

    Attributes:
      count: the number of environments.
      step_type: the step types, int64 [N].
      reward: array [N, ...]; 0 where the step is FIRST.
      discount: array [N, ...]; 1 where the step is FIRST.
      observations: arrays [N, ...] by flat name. See `lend`.
    """

    _keeps = False
    """Whether rows that the next step does not fill keep their values, to be lent again."""

    def __init__(self, specs: RowSpecs, count: int, copies: bool = True):
        self.count = count
        self._copies = copies
        self.adopt(specs)

    def adopt(self, specs: RowSpecs) -> None:
        """Replace all arrays with new arrays that match `specs`."""
        count = self.count
        self.step_type: Array = np.full(count, dm_env.StepType.FIRST, np.int64)
        self.reward = empty(specs.reward, count)
        self.discount = empty(specs.discount, count)
        self._reward_column = _column(specs.reward, "the reward")
        self._discount_column = _column(specs.discount, "the discount")
        self.observations = {name: empty(spec, count) for name, spec in specs.observations.items()}
        # Whether a caller has the arrays, and whether one batch has all rows, so that each answer
        # fills all of them.
        self._is_lent = self._is_whole = False

    def lend(self, ids: Array | None) -> dict[str, Array]:
        """Return the observations of some or all environments to a caller.

        If `copies` is true, the caller owns the arrays and can change them: this class neither
        writes nor reads them again.

        Args:
          ids: the indices of environments; None for all.
        """
        if ids is not None:
            return {name: rows[ids] for name, rows in self.observations.items()}
        # Rows without a new step are lent twice; a caller may have changed its copy.
        if self._copies and self._keeps and not self._is_whole:
            return {name: rows.copy() for name, rows in self.observations.items()}
        self._is_lent = self._copies
        return {**self.observations}

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Store the TimeStep of one environment. A FIRST step gets reward 0 and discount 1.

        Returns:
          Whether to begin the next sequence at once; if so, the environment arrives with the
          TimeStep of that sequence.

        Raises:
          SpecError: the reward or the discount does not conform to its spec.
        """
        self.step_type[index] = timestep.step_type
        reward, discount = timestep.reward, timestep.discount
        # Only these two values may come from a subclass of the adaptor, with another dtype.
        if reward is not None and self._reward_column is not None:
            reward = self._reward_column.taken(reward)
        if discount is not None and self._discount_column is not None:
            discount = self._discount_column.taken(discount)
        self.reward[index] = 0 if reward is None else reward
        self.discount[index] = 1 if discount is None else discount
        # The caller keeps its arrays, so new ones are filled.
        if self._is_lent:
            self._replace_lent()
        for name, rows in self.observations.items():
            rows[index] = timestep.observation[name]
        return False

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Store the LAST TimeStep of a row whose batch was lost, in the same way as `put`."""
        return self.put(index, timestep)

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> Sequence[int]:
        """Store the TimeStep of a batch.

        Args:
          at: an index that selects its rows among all environments; None for all.
          taken: an index that selects the rows in the TimeStep; None for all.
          timestep: the TimeStep, with fields [n, ...] and the observation `step_type`; a FIRST
            TimeStep has neither reward nor discount.

        Returns:
          The environments whose next sequences must begin at once.
        """
        rows = slice(None) if at is None else at
        which = slice(None) if taken is None else taken
        observation, reward, discount = timestep.observation, timestep.reward, timestep.discount
        self.step_type[rows] = observation[STEP_TYPE][which]
        self.reward[rows] = 0 if reward is None else reward[which]
        self.discount[rows] = 1 if discount is None else discount[which]
        self._put_observations(rows, which, observation)
        return ()

    def put_mid_steps(self, indices: list[int], steps: MidSteps) -> slice | list[int]:
        """Store the MID steps of some environments and return an index that selects their rows.

        After an error, it is called again for each step alone, to find the invalid ones.
        """
        at = rows_at(indices)
        self.step_type[at] = dm_env.StepType.MID
        steps.put(REWARD, self.reward, at, 0.0)
        steps.put(DISCOUNT, self.discount, at, 1.0)
        if self._is_lent:
            self._replace_lent()
        for name, rows in self.observations.items():
            steps.put(name, rows, at)
        return at

    def _put_observations(self, rows: Any, which: Any, observation: Mapping[str, Any]) -> None:
        is_whole = len(observation[STEP_TYPE]) == self.count
        # Rows that did not take part have their last values in the message, so all can be taken.
        if self._copies and is_whole and (self._is_lent or type(which) is slice):
            self.observations = {
                # The arrays of the message are the rows: nothing is copied.
                name: observation[name].astype(former.dtype, copy=False)
                for name, former in self.observations.items()
            }
            self._is_lent, self._is_whole = False, True
            return
        if self._is_lent:
            self._replace_lent()
        for name, array in self.observations.items():
            array[rows] = observation[name][which]

    def _replace_lent(self) -> None:
        self._is_lent = False
        # Rows that the next step does not fill must keep their values.
        other = np.copy if self._keeps else np.empty_like
        self.observations = {name: other(rows) for name, rows in self.observations.items()}


def _column(spec: specs.Array, label: str) -> Column | None:
    """Return a converter for the values of a numeric spec, or None for any other spec."""
    return Column(spec, (0,), label, spec.dtype) if spec.dtype.kind in "biuf" else None


def empty(spec: specs.Array, count: int) -> Array:
    """Return an array for `count` values of a spec, filled with zeros (with None for objects)."""
    if not isinstance(spec, specs.Array):
        raise SpecError(f"expected array specs, but an environment has the spec {spec!r}")
    if isinstance(spec, VARIABLE):
        return np.full((count,), None, object)
    if spec.dtype.kind not in "biuf":
        return np.full((count, *spec.shape), None, object)
    return np.zeros((count, *spec.shape), spec.dtype)
