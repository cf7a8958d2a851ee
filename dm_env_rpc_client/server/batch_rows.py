"""The rows of a batch of dm_env environments: their arrays, and what fills a row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt
import tree
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.worlds.flat_specs import FlatSpecs
from dm_env_rpc_client.tensors import casting
from dm_env_rpc_client.tensors.batch_specs import batch_spec

__all__ = ["EnvironmentRows", "batched", "leaves", "named", "zeros"]

_TAKEN = (batches.STEP_TYPE, batches.ROW_ERRORS)


class EnvironmentRows:
    """The arrays of a batch of dm_env environments; see `batch.Rows`.

    Args:
      environment: has the specs of all rows.
      count: the number of rows.
    """

    mode = "NEXT_STEP"

    def __init__(self, environment: dm_env.Environment, count: int):
        self.is_running = np.zeros(count, np.bool_)
        self.has_begun = np.zeros(count, np.bool_)
        self._single = FlatSpecs.of(environment, getattr(environment, "default_actions", {}))
        self.action_spec = batched(environment.action_spec(), count)
        self._observation_spec = batched(environment.observation_spec(), count)
        self.reward_spec = batched(environment.reward_spec(), count)
        self.discount_spec = batched(environment.discount_spec(), count)
        self._names = list(self._single.observation_names)
        # In the order of the names; written in place, so that the structures are made once.
        self._observation, self._reward, self._discount = (
            zeros(spec) for spec in (self._observation_spec, self.reward_spec, self.discount_spec)
        )
        self._sends_discount = self._single.sends_discount
        sent = [self._observation, self._reward, *([self._discount] * self._sends_discount)]
        arrays = [array for structure in sent for array in leaves(structure)]
        self._arrays = dict(zip(self._names, arrays, strict=True))
        if not self._sends_discount:
            self._discount[:] = 1.0
        self._values = named(self._observation, "observation", _TAKEN)
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

    def actions(self, action: Any) -> list[Any]:
        """Returns the arrays [N, ...] of actions, as tree flattens them.

        A default action is the same for all rows, and has no rows itself.
        """
        if self.action_spec is None:
            return []
        given = zip(
            tree.flatten_up_to(self.action_spec, action), leaves(self.action_spec), strict=True
        )
        return [
            value if np.shape(value) == spec.shape else np.broadcast_to(value, spec.shape)
            for value, spec in given
        ]

    def begin(self, index: int, environment: dm_env.Environment) -> None:
        """Begins a sequence; what this raises leaves the row as it was."""
        self._put(index, environment.reset())
        self.has_begun[index] = True

    def step(self, index: int, environment: dm_env.Environment, actions: list[Any]) -> None:
        """Takes a step, or begins a sequence if none is running; as `begin`."""
        if not self.is_running[index]:
            self.begin(index, environment)
            return
        by_name = zip(self._single.action_names, actions, strict=True)
        action = self._single.nested_action({name: array[index] for name, array in by_name})
        self._put(index, environment.step(action))

    def _put(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Puts the TimeStep of an environment into its row.

        Raises:
          RuntimeError: a value does not conform to its spec; the row is as it was.
        """
        values = self._single.flat_observations(timestep, self._names)
        fitting = [
            (array, self._fitting(name, array, values[name]))
            for name, array in self._arrays.items()
        ]
        for array, value in fitting:
            array[index] = value
        if not self._sends_discount:
            # `_check_default_discount` has seen that it is 1 or 0.
            self._discount[index] = 1.0 if timestep.discount is None else timestep.discount
        self._step_type[index] = timestep.step_type
        self.is_running[index] = not timestep.last()

    def timestep(self, kind: dm_env.StepType, failures: Mapping[int, str]) -> dm_env.TimeStep:
        """Returns the TimeStep of all rows, whose arrays the next `put` overwrites."""
        observation = {
            **self._values,
            batches.STEP_TYPE: self._step_type,
            batches.ROW_ERRORS: json.dumps(failures) if failures else "",
        }
        return dm_env.TimeStep(kind, self._reward, self._discount, observation)

    def _fitting(self, name: str, array: npt.NDArray[Any], value: Any) -> Any:
        """Returns a value that can be put into a row of an array without a loss."""
        if type(value) is np.ndarray and value.dtype == array.dtype:
            shape = value.shape
        elif array.dtype == object:
            value = np.asarray(value, object)
            shape = value.shape
        else:
            where = f"observation {name!r}"
            try:
                value = casting.exact_cast(casting.as_array(value, where), array.dtype, where)
            except SpecError as error:
                raise RuntimeError(f"the environment violates its own specs: {error}") from error
            shape = value.shape
        if shape != array.shape[1:]:
            raise RuntimeError(
                f"the environment violates its own specs: observation {name!r} has the shape "
                f"{list(shape)}, its spec {list(array.shape[1:])}"
            )
        return value if shape else value[()]


def leaves(structure: Any) -> list[Any]:
    """Returns the leaves of a structure; none if it is None."""
    return [] if structure is None else tree.flatten(structure)


def batched(structure: Any, count: int) -> Any:
    """Returns a structure of the specs of one row as that of `count` rows."""
    if structure is None:
        return None
    return tree.map_structure(lambda spec: batch_spec(spec, count), structure)


def zeros(structure: Any) -> Any:
    """Returns arrays of zeros, or of empty texts, for a structure of specs."""
    return None if structure is None else tree.map_structure(_zeros, structure)


def named(structure: Any, single: str, taken: Sequence[str]) -> dict[Any, Any]:
    """Returns a structure as a mapping, in which other names find a place.

    Args:
      structure: of specs or values.
      single: the name of one that is no mapping and no sequence.
      taken: the other names; SpecError if the structure has one of them.
    """
    if isinstance(structure, dict):
        both = sorted({*taken} & structure.keys())
        if both:
            raise SpecError(
                f"{both[0]!r} of an environment has a name that every batch has itself; rename it "
                "to serve batches"
            )
        return structure
    if isinstance(structure, list | tuple):
        return {str(index): part for index, part in enumerate(structure)}
    return {} if structure is None else {single: structure}


def _zeros(spec: specs.Array) -> npt.NDArray[Any]:
    if isinstance(spec, specs.StringArray):
        return np.full(spec.shape, "", object)
    return np.zeros(spec.shape, spec.dtype)
