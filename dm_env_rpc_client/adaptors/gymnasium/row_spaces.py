"""The spaces of N environments, and their elements as mappings of flat names to arrays.

Arrays are stacked along a new first axis. Other values, such as strings, are tuples of length N.
`SpecSpaces` is for dm_env environments, and `OwnSpaces` is for Gymnasium environments on servers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.adaptors.gymnasium.proxy import observation_reader
from dm_env_rpc_client.adaptors.gymnasium.spaces import Room, from_space, spec_to_space, to_space
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import OBSERVATION
from dm_env_rpc_client.environment.many.rows import RowSpecs, empty
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.timesteps import ACTION
from dm_env_rpc_client.tensors import nesting

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
"""A mapping of flat names to arrays [N, ...]."""


class RowSpaces(Protocol):
    """The spaces of N environments with the same specs.

    Attributes:
      specs: the specs of one environment.
      action_space: the action space of one environment.
      observation_space: the observation space of one environment.
    """

    specs: RowSpecs
    action_space: spaces.Space[Any]
    observation_space: spaces.Space[Any]

    def actions(self, actions: Any, count: int) -> dict[str, Any]:
        """Convert a batch of actions to a mapping of flat names to arrays [count, ...].

        Args:
          actions: an element of the space of `count` actions.
          count: the number of environments.

        Raises:
          SpecError: the structure of the actions is wrong.
        """

    def empty(self, count: int) -> Arrays:
        """Allocate arrays for the observations of `count` environments."""

    def observation(self, flat: Mapping[str, Any]) -> Any:
        """Build an element of `observation_space` from the values in `flat`."""

    def observations(self, flat: Arrays) -> Any:
        """Build an element of the batched observation space from the arrays in `flat`."""


class _Structure:
    """A structure of specs, and the Gymnasium space that corresponds to it.

    Args:
      flat_specs: the specs, by flat name.
      unwrap_single: whether to omit the mappings around a single array.
      kind: "action" or "observation", for error messages.
    """

    def __init__(self, flat_specs: Mapping[str, specs.Array], unwrap_single: bool, kind: str):
        self.is_single = unwrap_single and len(flat_specs) == 1
        room = Room()
        self.leaves = {name: spec_to_space(spec, name, room) for name, spec in flat_specs.items()}
        if self.is_single:
            (self.space,) = self.leaves.values()
        else:
            self.space = spec_to_space(
                nesting.unflatten_dict(flat_specs, nesting.SEPARATOR), kind, room
            )
        self.others = [name for name, space in self.leaves.items() if not _is_array(space)]

    def structured(self, flat: dict[str, Any]) -> Any:
        if self.is_single:
            (value,) = flat.values()
            return value
        return nesting.unflatten_dict(flat, nesting.SEPARATOR)


class SpecSpaces(RowSpaces):
    """Spaces derived from dm_env specs; see `RowSpaces`.

    Args:
      specs: the specs of one environment.
      unwrap_single: whether to omit the mappings around a single array.
    """

    def __init__(self, specs: RowSpecs, unwrap_single: bool):
        self.specs = specs
        self._actions = _Structure(specs.actions, unwrap_single, "action")
        self._observations = _Structure(specs.observations, unwrap_single, "observation")
        self.action_space = self._actions.space
        self.observation_space = self._observations.space

    def actions(self, actions: Any, count: int) -> dict[str, Any]:
        own = self._actions
        flat: dict[str, Any] = {}
        if own.is_single:
            flat = dict.fromkeys(own.leaves, actions)
        elif isinstance(actions, Mapping):
            flat = nesting.flatten_dict(actions, nesting.SEPARATOR, strict=False)
        if flat.keys() != own.leaves.keys():
            found = ", ".join(map(repr, flat)) or type(actions).__name__
            expected = ", ".join(map(repr, own.leaves)) or "none"
            raise SpecError(f"expected the actions {expected}, got {found}")
        for name in own.others:
            rows = iterate(batch_space(own.leaves[name], count), flat[name])
            flat[name] = [from_space(self.specs.actions[name], row, name) for row in rows]
        return flat

    def empty(self, count: int) -> Arrays:
        found = {name: empty(spec, count) for name, spec in self.specs.observations.items()}
        for name, space in self._observations.leaves.items():
            # In the dtype of the space, so that no conversion replaces the array later. As nothing
            # is written into it, it takes no memory before there are values.
            if _is_array(space) and found[name].dtype != space.dtype:
                found[name] = np.zeros(found[name].shape, space.dtype)
        return found

    def observation(self, flat: Mapping[str, Any]) -> Any:
        own = self._observations
        return own.structured(
            {name: to_space(space, flat[name]) for name, space in own.leaves.items()}
        )

    def observations(self, flat: Arrays) -> Any:
        found: dict[str, Any] = flat
        for name in self._observations.others:
            space = self._observations.leaves[name]
            rows = [to_space(space, value) for value in flat[name]]
            out: Any = create_empty_array(space, len(rows), np.zeros)
            found[name] = concatenate(space, rows, out)
        return self._observations.structured(found)


class OwnSpaces(RowSpaces):
    """The spaces of Gymnasium environments on servers; see `RowSpaces`.

    Args:
      action_space: the action space of one environment.
      observation_space: the observation space of one environment.
      specs: the specs of one environment.
    """

    def __init__(
        self,
        action_space: spaces.Space[Any],
        observation_space: spaces.Space[Any],
        specs: RowSpecs,
    ):
        self.specs = specs
        self.action_space = action_space
        self.observation_space = observation_space
        # By the number of rows; a client uses few different numbers.
        self._write_actions = functools.cache(
            functools.partial(elements.writer, action_space, "action")
        )
        self._read_observation = observation_reader(observation_space)
        self._read_observations = elements.reader(observation_space, OBSERVATION, of_rows=True)

    def actions(self, actions: Any, count: int) -> dict[str, Any]:
        try:
            value = self._write_actions(count)(actions)
        except (TypeError, KeyError, IndexError) as error:
            raise SpecError(
                f"cannot convert the actions to a batch of {count} actions: {error!r}"
            ) from error
        named = elements.by_name(value)
        if not isinstance(named, dict):
            return {ACTION: named}
        return nesting.flatten_dict(named, nesting.SEPARATOR)

    def empty(self, count: int) -> Arrays:
        return {
            name: empty(spec, count)
            for name, spec in self.specs.observations.items()
            if name.partition(nesting.SEPARATOR)[0] == OBSERVATION
        }

    def observation(self, flat: Mapping[str, Any]) -> Any:
        return self._read_observation(nesting.nest(flat, nesting.SEPARATOR))

    def observations(self, flat: Arrays) -> Any:
        return self._read_observations(nesting.nest(flat, nesting.SEPARATOR).get(OBSERVATION, {}))


def _is_array(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary)
