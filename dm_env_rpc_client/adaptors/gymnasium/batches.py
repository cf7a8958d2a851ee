"""Batches of actions and observations in the form of Gymnasium's vector environments.

Arrays are stacked along a new first axis; other values, such as those of a Text, are tuples of N.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.adaptors.gymnasium.boxes import Room
from dm_env_rpc_client.adaptors.gymnasium.lent_arrays import LentArrays
from dm_env_rpc_client.adaptors.gymnasium.proxy import observation_of
from dm_env_rpc_client.adaptors.gymnasium.spaces import from_space, spec_to_space, to_space
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import OBSERVATION
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.batches import STEP_TYPE
from dm_env_rpc_client.protocol.mid_steps import MidSteps
from dm_env_rpc_client.protocol.timesteps import ACTION
from dm_env_rpc_client.tensors import nesting

__all__ = ["ActionBatch", "ObservationBatch", "ProxyActionBatch", "ProxyObservationBatch"]


class _Batch:
    """The spaces of N environments with one structure of specs.

    Args:
      flat_specs: the specs of one environment, by flat name.
      count: the number of environments.
      unwrap_single: whether the mappings around a single array are left out.
      kind: "action" or "observation", for error messages.

    Attributes:
      specs: the specs of one environment, by flat name.
      single_space: the space of one environment.
      space: the space of all.
    """

    def __init__(
        self, flat_specs: Mapping[str, specs.Array], count: int, unwrap_single: bool, kind: str
    ):
        self.specs = flat_specs
        self._count = count
        self._is_single = unwrap_single and len(flat_specs) == 1
        room = Room()
        self._spaces = {name: spec_to_space(spec, name, room) for name, spec in flat_specs.items()}
        if self._is_single:
            (self.single_space,) = self._spaces.values()
        else:
            self.single_space = spec_to_space(
                nesting.unflatten_dict(flat_specs, nesting.SEPARATOR), kind, room
            )
        self.space = batch_space(self.single_space, count)

    def _is_array(self, name: str) -> bool:
        return _is_array(self._spaces[name])

    def _structured(self, flat: dict[str, Any]) -> Any:
        if self._is_single:
            (value,) = flat.values()
            return value
        return nesting.unflatten_dict(flat, nesting.SEPARATOR)


class ActionBatch(_Batch):
    """Splits batches of actions; for its arguments see `_Batch`."""

    def by_name(self, actions: Any, count: int) -> dict[str, Any]:
        """Returns actions by flat name, [count, ...] each.

        Args:
          actions: `count` rows of an element of `space`.
          count: the number of environments.

        Raises:
          SpecError: the structure is wrong.
        """
        flat = self._flat(actions)
        if flat.keys() != self.specs.keys():
            found = ", ".join(map(repr, flat)) or type(actions).__name__
            expected = ", ".join(map(repr, self.specs)) or "none"
            raise SpecError(f"expected the actions {expected}, got {found}")
        for name, space in self._spaces.items():
            if not self._is_array(name):
                rows = iterate(batch_space(space, count), flat[name])
                flat[name] = [from_space(self.specs[name], row, name) for row in rows]
        return flat

    def _flat(self, actions: Any) -> dict[str, Any]:
        if self._is_single:
            return dict.fromkeys(self.specs, actions)
        if isinstance(actions, Mapping):
            return nesting.flatten_dict(actions, nesting.SEPARATOR, strict=False)
        return {}


class ObservationBatch(_Batch):
    """Holds the last observation of each environment.

    For its arguments see `_Batch`; `copy` says whether observations belong to callers.
    """

    def __init__(
        self, flat_specs: Mapping[str, specs.Array], count: int, unwrap_single: bool, copy: bool
    ):
        super().__init__(flat_specs, count, unwrap_single, "observation")
        self._rows = LentArrays(
            {name: _rows(space, count) for name, space in self._spaces.items()}, stays=not copy
        )
        self._others = {name for name in self._spaces if not self._is_array(name)}
        self._copy = copy

    def put(self, index: int, observation: Mapping[str, Any]) -> None:
        """Fills a row with an observation by flat name."""
        for name, rows in self._rows.to_fill().items():
            value = observation[name]
            rows[index] = to_space(self._spaces[name], value) if name in self._others else value

    def put_mid_steps(self, indices: list[int], at: slice | list[int], steps: MidSteps) -> None:
        """Fills the rows of environments that are in the middle of their episodes.

        Args:
          indices: the rows.
          at: what selects them; see `rows.rows_at`.
          steps: one step for each.
        """
        for name, rows in self._rows.to_fill().items():
            if name not in self._others:
                steps.put(name, rows, at)
                continue
            for index, value in zip(indices, steps.values(name), strict=True):
                rows[index] = to_space(self._spaces[name], value)

    def put_rows(self, at: Any, taken: Any, observation: Mapping[str, Any]) -> None:
        """Fills the rows of a world.

        Args:
          at: selects the rows; None for all, which have the arrays of the world then.
          taken: selects them in the world.
          observation: arrays [n, ...] by flat name.
        """
        if len(observation[STEP_TYPE]) == self._count and not self._others:
            # Rows that do not take part have their last values in the message.
            self._rows.replace(observation)
            return
        at = slice(None) if at is None else at
        for name, rows in self._rows.to_fill().items():
            values = observation[name][taken]
            if name in self._others:
                converted = np.empty(len(values), object)
                converted[:] = [to_space(self._spaces[name], value) for value in values]
                values = converted
            rows[at] = values

    def single(self, observation: Mapping[str, Any]) -> Any:
        """Returns an observation by flat name as an element of `single_space`."""
        return self._structured(
            {name: to_space(space, observation[name]) for name, space in self._spaces.items()}
        )

    def rows(self, ids: npt.NDArray[np.int64] | None) -> Any:
        """Returns rows of an element of `space`.

        Args:
          ids: the indices of the rows; None for all.
        """
        flat: dict[str, Any] = dict(self._rows.rows(ids))
        for name in self._others:
            flat[name] = _put_together(self._spaces[name], flat[name].tolist(), self._copy)
        return self._structured(flat)


class ProxyActionBatch:
    """`ActionBatch` for Gymnasium environments at the servers.

    Args:
      space: the space of one environment.
      flat_specs: its specs, by flat name.
      count: the number of environments.

    Attributes:
      specs: `flat_specs`.
      single_space: `space`.
      space: the space of all.
    """

    def __init__(self, space: spaces.Space[Any], flat_specs: Mapping[str, specs.Array], count: int):
        self.specs = flat_specs
        self.single_space = space
        self.space = batch_space(space, count)

    def by_name(self, actions: Any, count: int) -> dict[str, Any]:
        """Returns actions by flat name, [count, ...] each; see `ActionBatch.by_name`."""
        try:
            value = elements.to_structure(self.single_space, actions, "action", count)
        except (TypeError, KeyError, IndexError) as error:
            raise SpecError(f"expected {count} actions in one batch: {error!r}") from error
        named = elements.by_name(value)
        if not isinstance(named, dict):
            return {ACTION: named}
        return nesting.flatten_dict(named, nesting.SEPARATOR)


class ProxyObservationBatch:
    """`ObservationBatch` for Gymnasium environments at the servers.

    For its arguments and attributes see `ProxyActionBatch` and `ObservationBatch`.
    """

    def __init__(
        self,
        space: spaces.Space[Any],
        flat_specs: Mapping[str, specs.Array],
        count: int,
        copy: bool,
    ):
        self.specs = flat_specs
        self.single_space = space
        self.space = batch_space(space, count)
        self._copy = copy
        self._names = [
            name for name in flat_specs if name.partition(nesting.SEPARATOR)[0] == OBSERVATION
        ]
        # The rows of most spaces are one array; those of others are put together when asked for.
        is_box = isinstance(space, spaces.Box)
        self._rows = _rows(space, count) if is_box else None
        self._elements: list[Any] = [None] * count
        self._out: Any = None if is_box else create_empty_array(space, count, np.zeros)

    def put(self, index: int, observation: Mapping[str, Any]) -> None:
        """Fills a row with an observation by flat name."""
        if self._rows is not None:
            self._rows[index] = self.single(observation)
        else:
            # Gymnasium puts samples of the space together; integers of Python it takes for int64.
            self._elements[index] = self.single(observation, as_sampled=True)

    def put_mid_steps(self, indices: list[int], at: slice | list[int], steps: MidSteps) -> None:
        """Fills rows with one step each; the arguments are those of `ObservationBatch`."""
        if self._rows is not None:
            steps.put(OBSERVATION, self._rows, at)
            return
        values = {name: steps.values(name) for name in self._names}
        for place, index in enumerate(indices):
            self.put(index, {name: column[place] for name, column in values.items()})

    def single(self, observation: Mapping[str, Any], as_sampled: bool = False) -> Any:
        """Returns an observation by flat name as an element of `single_space`."""
        nested = nesting.nest(observation, nesting.SEPARATOR)
        return observation_of(self.single_space, nested, as_sampled)

    def rows(self, ids: npt.NDArray[np.int64] | None) -> Any:
        """Returns the rows of these indices, None for all, of an element of `space`."""
        if self._rows is not None:
            if ids is not None:
                return self._rows[ids]
            return self._rows.copy() if self._copy else self._rows
        if ids is not None:
            selected = [self._elements[index] for index in ids]
            return _put_together(self.single_space, selected, self._copy)
        if self._copy:
            return _put_together(self.single_space, self._elements, True)
        self._out = concatenate(self.single_space, self._elements, self._out)
        return self._out


def _is_array(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary)


def _keeps_elements(space: spaces.Space[Any]) -> bool:
    """Whether what `concatenate` returns has parts of the elements in it that may be changed."""
    if isinstance(space, spaces.Dict):
        return any(map(_keeps_elements, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(_keeps_elements, space.spaces))
    return not isinstance(space, (*elements.ARRAYS, spaces.Text))


def _rows(space: spaces.Space[Any], count: int) -> npt.NDArray[Any]:
    if _is_array(space):
        empty: Any = create_empty_array(space, count, np.zeros)
        return np.asarray(empty)
    return np.full(count, None, object)


def _put_together(space: spaces.Space[Any], values: Sequence[Any], copies: bool) -> Any:
    """Returns elements of a space as one of the space of all; a copy, if need be."""
    if copies and _keeps_elements(space):
        values = copy.deepcopy(values)
    out: Any = create_empty_array(space, len(values), np.zeros)
    return concatenate(space, values, out)
