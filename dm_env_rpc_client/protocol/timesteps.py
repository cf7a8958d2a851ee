"""dm_env TimeSteps from the state and the observations of a StepResponse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dm_env
import numpy as np
import tree

from dm_env_rpc_client.errors import SpecError

__all__ = ["DISCOUNT", "REWARD", "default_discount", "stack"]

REWARD = "reward"
"""Name of the observation with the reward ("Reward and discount" in the protocol overview)."""

DISCOUNT = "discount"
"""Name of the observation with the discount."""


def default_discount(step_type: dm_env.StepType, terminated: bool) -> float:
    """The discount if the server sends none: 0 after a true end, otherwise 1."""
    return 0.0 if step_type is dm_env.StepType.LAST and terminated else 1.0


def stack(timesteps: Iterable[dm_env.TimeStep], length: int | None = None) -> dm_env.TimeStep:
    """Stacks TimeSteps along a new first axis, time.

    Args:
      timesteps: at least one, all of the same structure. Each is copied at once, so that
        the steps of an iterator need not all be in memory at the same time.
      length: the number of TimeSteps if `timesteps` is an iterator.

    Returns:
      A TimeStep of arrays: `step_type` int [T]; `reward` and `discount` [T, ...], where
      a FIRST step, which has neither, gets reward 0 and discount 1; `observation` has the
      structure of one step, each leaf [T, ...].

    Raises:
      SpecError: there are no TimeSteps, or the shape of a leaf or the structure changes
        from step to step.
    """
    if length is None:
        timesteps = list(timesteps)
        length = len(timesteps)
    if not length:
        raise SpecError("cannot stack: there are no TimeSteps")
    step_type = np.empty(length, np.int64)
    observation = _Column(length)
    reward, discount = _Column(length, 0), _Column(length, 1)
    index = 0
    for index, timestep in enumerate(timesteps):
        step_type[index] = timestep.step_type
        try:
            if timestep.reward is not None:
                reward.put(index, timestep.reward)
            if timestep.discount is not None:
                discount.put(index, timestep.discount)
            observation.put(index, timestep.observation)
        except (TypeError, ValueError) as error:
            raise SpecError(f"TimeSteps of different shapes cannot be stacked: {error}") from error
    return dm_env.TimeStep(step_type, reward.stacked(), discount.stacked(), observation.stacked())


class _Column:
    """One field of the TimeSteps, filled step by step."""

    def __init__(self, length: int, stand_in: int | None = None):
        self._length = length
        self._stand_in = stand_in
        self._structure: Any = None
        self._arrays: list[Any] | None = None
        self._leaf_type: type[Any] | None = None

    def put(self, index: int, value: Any) -> None:
        """Copies the field of step `index`; a step without a `put` keeps the stand-in."""
        if self._leaf_type is type(value):
            self._put_leaf(index, 0, value)
            return
        if self._arrays is None:
            self._structure = value
            self._leaf_type = None if tree.is_nested(value) else type(value)
            self._arrays = [self._allocate(_as_array(leaf)) for leaf in tree.flatten(value)]
        elif self._structure is not value:
            tree.assert_same_structure(self._structure, value)
        for place, leaf in enumerate(tree.flatten(value)):
            self._put_leaf(index, place, leaf)

    def _put_leaf(self, index: int, place: int, leaf: Any) -> None:
        assert self._arrays is not None
        element, array = _as_array(leaf), self._arrays[place]
        if element.shape != array.shape[1:]:
            raise ValueError(f"{element.shape} after {array.shape[1:]}")
        if element.dtype != array.dtype:
            array = array.astype(np.promote_types(array.dtype, element.dtype))
            self._arrays[place] = array
        array[index] = element if element.ndim else element[()]

    def stacked(self) -> Any:
        """Returns the structure of a step, each leaf [T, ...]."""
        if self._arrays is None:
            return np.full(self._length, self._stand_in, np.float64)
        return tree.unflatten_as(self._structure, self._arrays)

    def _allocate(self, element: Any) -> Any:
        shape = (self._length, *element.shape)
        if self._stand_in is None:
            return np.empty(shape, element.dtype)
        return np.full(shape, self._stand_in, element.dtype)


def _as_array(leaf: Any) -> Any:
    # Strings as objects: NumPy's string type would pad each to the longest.
    return np.asarray(leaf, object) if isinstance(leaf, str) else np.asarray(leaf)
