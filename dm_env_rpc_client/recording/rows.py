"""The steps of each row, extracted from the steps of a batched world.

In a batched world, the beginning and the end of each row's sequences are marked by the observation
`step_type`, not by the stream's state. The rules are in the guide "Serve a batch".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_env_specs

from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.recording.bounded_records import FileBudget
from dm_env_rpc_client.tensors.columns import row_tensor_spec
from dm_env_rpc_client.tensors.spec_manager import SpecManager
from dm_env_rpc_client.tensors.specs import tensor_spec_to_dm_env_spec

_FIRST = dm_env.StepType.FIRST

# Memory overhead besides the bytes of arrays and messages, measured with CPython 3.11.
_TIMESTEP_BYTES = 1000
_VALUE_BYTES = 200
_OBJECT_BYTES = 650

_ROW_BYTES = 32
"""The memory, in bytes, that a row takes in addition to its TimeSteps."""


class Specs(NamedTuple):
    """The specs of an episode's actions and observations, by flat name."""

    actions: Mapping[str, dm_env_specs.Array]
    observations: Mapping[str, dm_env_specs.Array]


class RowStep(NamedTuple):
    """A step of one row.

    Attributes:
      row: the row; None for a world without rows.
      timestep: the TimeStep, with observations by flat name.
      action: the action before the TimeStep, by flat name.
      size: the size of the TimeStep and the action, in bytes.
    """

    row: int | None
    timestep: dm_env.TimeStep
    action: dict[str, Any]
    size: int


class Rows:
    """Splits the steps of a batched world into the steps of its rows.

    Args:
      specs: the specs of one row.
      count: the number of rows.
      budget: the remaining budget for reading the file.

    Attributes:
      specs: the specs of one row.
    """

    def __init__(self, specs: Specs, count: int, budget: FileBudget):
        self.specs = specs
        self._count = count
        self._budget = budget
        self.forget()

    @classmethod
    def of(cls, actions: SpecManager, observations: SpecManager, budget: FileBudget) -> Rows | None:
        """Return the rows of a world with the given specs, or None if the world is not batched.

        Raises:
          SpecError: the specs break the rules for batches.
        """
        found = observations.specs_by_name
        count = batches.num_rows(found)
        if count is None:
            return None
        if batches.STEP_MASK in actions.specs_by_name:
            mask = tensor_spec_to_dm_env_spec(actions.name_to_spec(batches.STEP_MASK))
            if mask.dtype != np.bool_ or mask.shape != (count,):
                raise SpecError(
                    f"action {batches.STEP_MASK!r} of the batch is {mask.dtype} "
                    f"{list(mask.shape)}; expected bool [{count}]"
                )
        names = [n for n, spec in found.items() if n not in batches.OF_BATCH and spec.shape]
        names_of_actions = [n for n in actions.specs_by_name if n != batches.STEP_MASK]

        def of(manager: SpecManager, names: list[str]) -> dict[str, dm_env_specs.Array]:
            rows = {n: row_tensor_spec(manager.name_to_spec(n), count) for n in names}
            return {n: tensor_spec_to_dm_env_spec(spec) for n, spec in rows.items()}

        try:
            specs = Specs(of(actions, names_of_actions), of(observations, names))
        except SpecError:
            return None
        return cls(specs, count, budget)

    def forget(self) -> None:
        """Forget the state of the rows after the world was left or reset."""
        # The rows that have stepped; None before the world's first step.
        self._seen: npt.NDArray[np.bool_] | None = None
        # The rows in which a Reset begins sequences; None for all.
        self._mask: npt.NDArray[np.bool_] | None = None
        self._has_reset = False

    def reset(self, mask: Any) -> list[int] | None:
        """Process a Reset, and return the rows whose sequences it ends, or None for all rows.

        Args:
          mask: the rows in which the next step begins a sequence, bool [N]; None for all.

        Raises:
          SpecError: the mask is invalid.
        """
        if mask is None:
            self._mask, self._has_reset = None, True
            return None
        named = batches.checked_reset_mask(mask, self._count)
        if not self._has_reset:
            self._mask, self._has_reset = named, True
        elif self._mask is not None:
            self._mask = self._mask | named
        rows: list[int] = np.flatnonzero(named).tolist()
        return rows

    def steps(
        self, is_first: bool, action: Mapping[str, Any], values: Mapping[str, Any]
    ) -> Iterator[RowStep]:
        """Yield the steps of the rows that have stepped; the values are copies.

        Args:
          is_first: whether this is the first step of the stream, or the first after a Reset.
          action: the actions, arrays [N, ...] by flat name.
          values: the observations, arrays [N, ...] by flat name.

        Raises:
          ProtocolError: the values do not belong to a batched world.
        """
        if batches.STEP_TYPE not in values:
            raise ProtocolError(
                f"the step does not have the observation {batches.STEP_TYPE!r}, unlike earlier "
                "steps"
            )
        batches.check_step(values, self._count)
        kinds = values[batches.STEP_TYPE]
        if self._seen is None:
            self._budget.hold(_ROW_BYTES * len(kinds))
            self._seen = np.zeros(len(kinds), np.bool_)
        taken = self._taken(is_first, self._seen, kinds, action)
        for row in batches.row_errors(values.get(batches.ROW_ERRORS, ""), self._count):
            taken[row] = False
        self._seen |= taken
        arrays = {name: values[name] for name in self.specs.observations if name in values}
        actions = {name: action[name] for name in self.specs.actions if name in action}
        given = [*arrays.values(), *actions.values()]
        size = size_of_step(*[0] * len(given)) + sum(map(size_of, given)) // len(kinds)
        for row in map(int, np.flatnonzero(taken)):
            kind = dm_env.StepType(int(kinds[row]))
            own = {} if kind is _FIRST else {n: copied(array[row]) for n, array in actions.items()}
            yield RowStep(row, _timestep(arrays, row, kind), own, size)

    def _taken(
        self, is_first: bool, seen: npt.NDArray[np.bool_], kinds: Any, action: Mapping[str, Any]
    ) -> npt.NDArray[np.bool_]:
        """Return a bool [N] mask of the rows to step; other rows repeat their last values."""
        if not is_first:
            # Recordings of older clients may contain steps of some rows only.
            mask = action.get(batches.STEP_MASK)
            return np.ones(len(kinds), np.bool_) if mask is None else mask.copy()
        mask, self._mask, self._has_reset = self._mask, None, False
        # A row whose step is not FIRST has not begun a sequence.
        is_kind: npt.NDArray[np.bool_] = kinds == _FIRST
        return is_kind if mask is None else is_kind & (mask | ~seen)


def _timestep(arrays: Mapping[str, Any], row: int, kind: dm_env.StepType) -> dm_env.TimeStep:
    values = {name: copied(array[row]) for name, array in arrays.items()}
    reward, discount = values.pop(REWARD, None), values.pop(DISCOUNT, None)
    if kind is _FIRST:
        reward = discount = None
    return dm_env.TimeStep(kind, reward, discount, values)


def copied(value: Any) -> Any:
    """Return a copy of an array; return any other value unchanged."""
    return value.copy() if isinstance(value, np.ndarray) else value


def size_of(value: Any) -> int:
    """Return the size of a value, or an upper bound for arrays of strings or messages."""
    array = np.asarray(value)
    return (
        _VALUE_BYTES + array.nbytes + (_OBJECT_BYTES * array.size if array.dtype == object else 0)
    )


def size_of_step(*values: Any) -> int:
    """Return the size of a TimeStep with the given values."""
    return _TIMESTEP_BYTES + sum(map(size_of, values))
