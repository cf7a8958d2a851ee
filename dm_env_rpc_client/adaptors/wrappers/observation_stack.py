"""The last observations together, so that an agent sees movement."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.wrappers.wrapper import Wrapper, by_name, map_named
from dm_env_rpc_client.errors import SpecError


class ObservationStack(Wrapper):
    """The last observations of a sequence along a new last axis, the newest at its end.

    At the beginning of a sequence the first observation takes the places of those that are missing,
    so that all values are within the bounds of the spec. acme's FrameStackingWrapper, whose axis it
    is, has zeros there and no bounds; Gymnasium's FrameStackObservation has the first observation,
    and a new first axis.

    Args:
      environment: one environment or a batch.
      count: how many observations are stacked.
      names: flat names, or patterns such as `camera.*`, of the observations to stack; None for
        all. An observation that is one array, without a mapping, has no name.

    Raises:
      SpecError: `count` is less than 1, a name matches no observation, or an observation to stack
        has a variable length.
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        count: int = 4,
        names: Sequence[str] | None = None,
    ):
        if isinstance(names, str):
            raise SpecError(f"names is a list of names, got {names!r}")
        self._count = arguments.count("count", count)
        self._patterns = names
        super().__init__(environment)

    def adopt_specs(self) -> None:
        """Takes the specs of another world; what was stacked is forgotten."""
        self._last: dict[str, npt.NDArray[Any]] = {}
        own = by_name(self.environment.observation_spec())
        self._stacked = set(own) if self._patterns is None else set[str]()
        for pattern in self._patterns or ():
            matches = {pattern} & own.keys() or fnmatch.filter(own, pattern)
            if not matches:
                raise SpecError(f"no observation matches {pattern!r}; observations: {list(own)}")
            self._stacked |= set(matches)
        for name in self._stacked:
            if not _is_stackable(own[name]):
                raise SpecError(
                    f"observation {name!r} has no fixed shape and cannot be stacked; select others "
                    "with names"
                )

    def observation_spec(self) -> Any:
        """Returns the specs of the observations, with another axis of length `count` at the end."""
        return map_named(
            lambda name, spec: self._spec(spec) if name in self._stacked else spec,
            self.environment.observation_spec(),
        )

    def convert_timestep(
        self, timestep: dm_env.TimeStep, env_ids: npt.NDArray[np.int64] | None
    ) -> dm_env.TimeStep:
        is_first = np.asarray(timestep.step_type) == dm_env.StepType.FIRST
        rows = slice(None) if env_ids is None else env_ids

        def stack(name: str, value: Any) -> Any:
            if name not in self._stacked:
                return value
            newest = np.asarray(value, object if isinstance(value, str) else None)[..., None]
            last = self._last.get(name)
            if last is None:
                batch = () if self.num_envs is None else (self.num_envs,)
                shape = (*batch, *newest.shape[len(batch) : -1], self._count)
                last = self._last[name] = np.empty(shape, newest.dtype)
            stacked = np.concatenate([last[rows][..., 1:], newest], axis=-1)
            stacked[is_first] = newest[is_first]
            last[rows] = stacked
            return stacked

        return timestep._replace(observation=map_named(stack, timestep.observation))

    def _spec(self, spec: specs.Array) -> specs.Array:
        shape = (*spec.shape, self._count)
        if isinstance(spec, specs.StringArray):
            return specs.StringArray(shape, spec.string_type, spec.name)
        if isinstance(spec, specs.BoundedArray):
            low, high = (
                bound[..., None] if bound.ndim else bound for bound in (spec.minimum, spec.maximum)
            )
            return specs.BoundedArray(shape, spec.dtype, low, high, spec.name)
        return specs.Array(shape, spec.dtype, spec.name)


def _is_stackable(spec: specs.Array) -> bool:
    # In a batch, arrays of variable length are objects.
    is_objects = spec.dtype.kind == "O" and not isinstance(spec, specs.StringArray)
    return not is_objects and -1 not in spec.shape
