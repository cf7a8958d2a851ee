"""Values of several environments, stacked along a new first axis, one row per environment.

Rows of numbers, bools and strings of one shape are one array; others, such as arrays of
variable length, are an array of objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.batches import STEP_TYPE
from dm_env_rpc_client.protocol.mid_steps import MidSteps
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.tensors import casting
from dm_env_rpc_client.tensors.batch_specs import VARIABLE
from dm_env_rpc_client.tensors.columns import Column

__all__ = ["Rows", "batch_of_actions", "rows_at", "selector", "split_action"]

Array: TypeAlias = npt.NDArray[Any]


def rows_at(indices: list[int]) -> slice | list[int]:
    """Returns what selects rows of arrays; a slice, which is faster, if they are consecutive."""
    first, after = indices[0], indices[0] + len(indices)
    if indices[-1] == after - 1 and indices == list(range(first, after)):
        return slice(first, after)
    return indices


def selector(indices: Sequence[int]) -> slice | Array:
    """Returns what selects rows of arrays: a slice if the indices have one distance."""
    steps = {after - before for before, after in itertools.pairwise(indices)}
    if len(steps) <= 1 and (step := max(steps, default=1)) > 0:
        return slice(indices[0], indices[-1] + 1, step)
    return np.array(indices)


def split_action(
    batch: Mapping[str, Any], single: Mapping[str, specs.Array], count: int
) -> list[dict[str, Any]]:
    """Takes a batch of actions apart.

    Args:
      batch: arrays [count, ...] by flat name; any of the names may be left out.
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
    """Returns a batch of actions as arrays; arguments and errors are those of `split_action`."""
    arrays = {}
    for name, value in batch.items():
        spec, where = single.get(name), f"action {name!r}"
        array = casting.as_array(value, where)
        if spec is not None and spec.dtype.kind in "biuf":
            array = casting.exact_cast(array, spec.dtype, where)
        if array.ndim == 0:
            raise SpecError(f"{where}: is one value; expected {count}, one for each environment")
        _check_count(len(array), count, where)
        arrays[name] = array
    return arrays


def _check_count(found: int, count: int, where: str) -> None:
    if found != count:
        raise SpecError(f"{where}: has {found} rows; expected {count}, one for each environment")


def _to_rows(value: Any, spec: specs.Array | None, where: str, count: int) -> list[Any]:
    is_listed = isinstance(value, list | tuple) or (
        isinstance(value, np.ndarray) and value.dtype == object
    )
    if is_listed and (spec is None or spec.dtype.kind not in "biuf" or isinstance(spec, VARIABLE)):
        rows: list[Any] = list(value)
    else:
        array = casting.as_array(value, where)
        if spec is not None and spec.dtype.kind in "biuf":
            array = casting.exact_cast(array, spec.dtype, where)
        if array.ndim == 0:
            raise SpecError(f"{where}: is one value; expected {count}, one for each environment")
        if array.ndim == 1 and array.dtype.kind in "iu":
            rows = array.tolist()  # Integers of Python are encoded faster than NumPy's.
        else:
            rows = [array[index, ...] for index in range(len(array))]
    _check_count(len(rows), count, where)
    return rows


class Rows:
    """The last TimeStep of each environment.

    Args:
      observation_specs: of one environment, by flat name.
      reward_spec: of one environment.
      discount_spec: of one environment.
      count: the number of environments.
      adopts: whether the arrays of a world that has all rows become these.
    """

    has_to_begin = False
    ended: Sequence[int] = ()

    def __init__(
        self,
        observation_specs: Mapping[str, specs.Array],
        reward_spec: specs.Array,
        discount_spec: specs.Array,
        count: int,
        adopts: bool = True,
    ):
        self._count = count
        self._adopts = adopts
        self.adopt(observation_specs, reward_spec, discount_spec)

    def adopt(
        self,
        observation_specs: Mapping[str, specs.Array],
        reward_spec: specs.Array,
        discount_spec: specs.Array,
    ) -> None:
        """Begins anew, with other specs."""
        count = self._count
        self.step_type: Array = np.full(count, dm_env.StepType.FIRST, np.int64)
        self.reward = _empty(reward_spec, count)
        self.discount = _empty(discount_spec, count)
        self._reward_column = _column(reward_spec, "the reward")
        self._discount_column = _column(discount_spec, "the discount")
        self.observations = {name: _empty(spec, count) for name, spec in observation_specs.items()}

    def renew(self) -> None:
        """Replaces all arrays, whose former contents belong to somebody else from here on.

        The rows of the new ones hold nothing until they are filled.
        """
        self.step_type = np.empty_like(self.step_type)
        self.reward = np.empty_like(self.reward)
        self.discount = np.empty_like(self.discount)
        self.observations = {name: np.empty_like(rows) for name, rows in self.observations.items()}

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Fills a row. The row of a FIRST step has reward 0 and discount 1.

        Returns:
          False: the environment does not begin a sequence at once.

        Raises:
          SpecError: the reward or the discount does not conform to its spec.
        """
        self.step_type[index] = timestep.step_type
        reward, discount = timestep.reward, timestep.discount
        # Of all values these two may be of a subclass of the adaptor, and of another dtype.
        if reward is not None and self._reward_column is not None:
            reward = self._reward_column.taken(reward)
        if discount is not None and self._discount_column is not None:
            discount = self._discount_column.taken(discount)
        self.reward[index] = 0 if reward is None else reward
        self.discount[index] = 1 if discount is None else discount
        for name, rows in self.observations.items():
            rows[index] = timestep.observation[name]
        return False

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Fills a row whose environment was lost."""
        self.put(index, timestep)

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> None:
        """Fills the rows of a batched world.

        Args:
          at: selects the rows here; None for all of them.
          taken: selects them in the TimeStep; None for all of them.
          timestep: the fields [n, ...], with the observation `step_type`; a FIRST one has neither
            reward nor discount.
        """
        if at is None and not self._adopts:
            at = slice(None)

        def values(array: Array | None, spec: Array, stand_in: float) -> Any:
            if array is None:
                return np.full(spec.shape if at is None else spec[at].shape, stand_in, spec.dtype)
            return array if taken is None else array[taken]

        step_type = values(timestep.observation[STEP_TYPE], self.step_type, 0).astype(np.int64)
        reward = values(timestep.reward, self.reward, 0)
        discount = values(timestep.discount, self.discount, 1)
        observations = {
            name: values(timestep.observation[name], rows, 0)
            for name, rows in self.observations.items()
        }
        if at is None:
            self.step_type, self.reward, self.discount = step_type, reward, discount
            self.observations = observations
            return
        self.step_type[at], self.reward[at], self.discount[at] = step_type, reward, discount
        for name, rows in self.observations.items():
            rows[at] = observations[name]

    def put_mid_steps(self, indices: list[int], steps: MidSteps) -> None:
        """Fills the rows of environments that are in the middle of their sequences."""
        at = rows_at(indices)
        self.step_type[at] = dm_env.StepType.MID
        steps.put(REWARD, self.reward, at, 0.0)
        steps.put(DISCOUNT, self.discount, at, 1.0)
        for name, rows in self.observations.items():
            steps.put(name, rows, at)


def _column(spec: specs.Array, label: str) -> Column | None:
    """Returns what takes numbers of a spec; None for others."""
    return Column(spec, (0,), label, spec.dtype) if spec.dtype.kind in "biuf" else None


def _empty(spec: specs.Array, count: int) -> Array:
    if not isinstance(spec, specs.Array):
        raise SpecError(f"an array is expected, but an environment's spec is {spec!r}")
    if isinstance(spec, VARIABLE):
        return np.full((count,), None, object)
    if spec.dtype.kind not in "biuf":
        return np.full((count, *spec.shape), None, object)
    return np.zeros((count, *spec.shape), spec.dtype)
