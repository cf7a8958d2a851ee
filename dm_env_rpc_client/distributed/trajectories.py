"""Rollout results: trajectories of several environments, stacked along the time axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
import tree

from dm_env_rpc_client.environment.restarting import difference
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.columns import Column, batch_spec

Array: TypeAlias = npt.NDArray[Any]


class Batch(NamedTuple):
    """The results of T steps in N environments.

    `actions[t]` was chosen at the TimeStep `timesteps[t]`, and led to `timesteps[t + 1]`. A batch
    therefore has one more TimeStep than actions, and its last TimeStep is also the first TimeStep
    of the next batch of the same environments. A LAST TimeStep is followed by a FIRST TimeStep,
    and the environment ignored the action between the two.

    The caller owns the arrays and can write to them.

    Attributes:
      timesteps: the TimeSteps: `step_type`, int64 [T + 1, N]; `reward` and `discount`, of shape [T
        + 1, N, ...], which are 0 and 1 where the TimeStep is FIRST; and `observation`, in the
        structure of `observation_spec`, with leaves of shape [T + 1, N, ...]. Strings, and arrays
        of variable length, are stored in arrays of objects.
      actions: the actions, in the structure that the policy returned, with leaves of shape [T, N,
        ...].
      extras: the policy's results besides actions, with leaves of shape [T, N, ...]; () if there
        are none.
      env_ids: the index of each environment, int64 [N].
      restarts: the number of replacements of each environment's actor, int64 [N].
      start: the number of steps of each environment from its creation to `timesteps[0]`, int64 [N].
        An environment's index, `restarts` and `start` together identify a batch.
      version: the version of the policy's weights: 0 for the constructor's weights, incremented by
        each `update`.
    """

    timesteps: dm_env.TimeStep
    actions: Any
    extras: Any
    env_ids: npt.NDArray[np.int64]
    restarts: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    version: int


def merge(batches: Sequence[Batch]) -> Batch:
    """Merge batches that have equal step counts and weights, but different environments.

    Args:
      batches: the batches, at least one; the result is a copy.
    """

    def join(axis: int, *structures: Any) -> Any:
        return tree.map_structure(lambda *leaves: np.concatenate(leaves, axis), *structures)

    timesteps, actions, extras = join(1, *(batch[:3] for batch in batches))
    env_ids, restarts, start = join(0, *(batch[3:6] for batch in batches))
    return Batch(timesteps, actions, extras, env_ids, restarts, start, batches[0].version)


class EnvironmentSpecs(NamedTuple):
    """The specs of an environment.

    Attributes:
      action: the result of its `action_spec`.
      observation: the result of its `observation_spec`.
      reward: the result of its `reward_spec`.
      discount: the result of its `discount_spec`.
    """

    action: Any
    observation: Any
    reward: Any
    discount: Any

    @classmethod
    def of(cls, environment: dm_env.Environment) -> EnvironmentSpecs:
        """Return the specs of an environment."""
        return cls(*(getattr(environment, f"{kind}_spec")() for kind in cls._fields))

    def check_same(self, other: EnvironmentSpecs, label: str) -> None:
        """Raise SpecError if the specs of another environment differ from these.

        Args:
          other: the specs of the other environment.
          label: the name of that environment in the error.
        """
        for kind, expected, found in zip(self._fields, self, other, strict=True):
            if expected != found:
                raise SpecError(
                    f"{label} has a different {kind}_spec from the environments before it: "
                    f"{difference(expected, found)}; all environments must have the same specs"
                )


class Stack:
    """The stacked TimeSteps of several environments, added one step at a time.

    Args:
      specs: the specs of one environment.
      length: the number of TimeSteps of each environment.
      env_ids: the indices of the environments, for errors.
    """

    def __init__(self, specs: EnvironmentSpecs, length: int, env_ids: Sequence[int]):
        shape = (length, len(env_ids))
        self._env_ids = env_ids
        self._step_type = np.full(shape, dm_env.StepType.FIRST, np.int64)
        self._reward = _Field("reward", specs.reward, shape, 0)
        self._discount = _Field("discount", specs.discount, shape, 1)
        self._observation = _Field("observation", specs.observation, shape, 0)

    def put(self, time: int, place: int, timestep: dm_env.TimeStep) -> None:
        """Copy the TimeStep of one environment to its place in the stack.

        Args:
          time: the index along the time axis.
          place: the index of the environment within the stack.
          timestep: the TimeStep.

        Raises:
          SpecError: the TimeStep does not conform to the specs.
        """
        self._step_type[time, place] = timestep.step_type
        try:
            if timestep.reward is not None:
                self._reward.put(time, place, timestep.reward)
            if timestep.discount is not None:
                self._discount.put(time, place, timestep.discount)
            self._observation.put(time, place, timestep.observation)
        except SpecError as error:
            raise SpecError(f"environment {self._env_ids[place]}: {error}") from error

    def put_all(self, time: int, timestep: dm_env.TimeStep) -> None:
        """Copy the TimeSteps of all environments, with fields of shape [N, ...], to their places.

        The values must conform to the specs, with reward 0 and discount 1 in FIRST TimeSteps, as
        returned by `BatchedEnvironment`.
        """
        self._step_type[time] = timestep.step_type
        self._reward.put_all(time, timestep.reward)
        self._discount.put_all(time, timestep.discount)
        self._observation.put_all(time, timestep.observation)

    def at(self, time: int) -> dm_env.TimeStep:
        """Return a copy of all TimeSteps at one time index, with fields of shape [N, ...]."""
        fields = (field.at(time) for field in (self._reward, self._discount, self._observation))
        return dm_env.TimeStep(self._step_type[time].copy(), *fields)

    def whole(self) -> dm_env.TimeStep:
        """Return all TimeSteps in the stack, with fields of shape [length, N, ...]."""
        fields = (field.whole() for field in (self._reward, self._discount, self._observation))
        return dm_env.TimeStep(self._step_type, *fields)


class _Field:
    """A field, possibly nested, of the TimeSteps in a stack."""

    def __init__(self, name: str, spec: Any, shape: tuple[int, int], stand_in: int):
        self._spec = spec
        self._paths: list[tuple[str, tuple[Any, ...]]] = []
        self._arrays: list[Array] = []
        # None for object values, such as arrays of variable length, and for dtypes not in the
        # protocol.
        self._columns: list[Column | None] = []
        for path, leaf in tree.flatten_with_path(spec):
            where = f"{name} {'.'.join(map(str, path))!r}" if path else name
            self._paths.append((where, path))
            self._arrays.append(_allocate(leaf, shape, stand_in, where))
            self._columns.append(_column(leaf, self._arrays[-1].dtype, where))

    def put(self, time: int, place: int, value: Any) -> None:
        for (where, path), array, column in zip(
            self._paths, self._arrays, self._columns, strict=True
        ):
            leaf = value
            try:
                for key in path:
                    leaf = getattr(leaf, key) if hasattr(leaf, "_fields") else leaf[key]
            except (LookupError, TypeError, AttributeError):
                raise SpecError(f"{where} is missing from the TimeStep, but has a spec") from None
            array[time, place] = leaf if column is None else column.taken(leaf)

    def put_all(self, time: int, values: Any) -> None:
        for array, leaf in zip(self._arrays, tree.flatten(values), strict=True):
            array[time] = leaf

    def at(self, time: int) -> Any:
        return tree.unflatten_as(self._spec, [array[time].copy() for array in self._arrays])

    def whole(self) -> Any:
        return tree.unflatten_as(self._spec, self._arrays)


def _allocate(spec: Any, shape: tuple[int, int], stand_in: int, where: str) -> Array:
    if not hasattr(spec, "dtype"):
        raise SpecError(f"{where} must have an array spec, got {spec!r}")
    length, count = shape
    stacked = batch_spec(batch_spec(spec, count), length)
    filling = None if stacked.dtype == object else stand_in
    return np.full(stacked.shape, filling, stacked.dtype)


def _column(spec: Any, dtype: np.dtype[Any], where: str) -> Column | None:
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        return None
    return Column(spec, (0,), where, dtype)
