"""Floats of one precision."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client.adaptors.wrappers.wrapper import (
    Wrapper,
    by_name,
    map_actions,
    map_named,
    where,
)
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import casting


class FloatCast(Wrapper):
    """All floats in one precision: observations, reward, discount and actions.

    Values are rounded to the nearest; what is beyond the range of `dtype` becomes infinite. The
    bounds of observations are rounded with them. The bounds of actions are rounded inwards, so that
    all values of the spec are actions of the environment; it gets them in its own dtype. Integers,
    bools and texts stay as they are.

    acme's SinglePrecisionWrapper also makes int32 of int64, and rounds the bounds of actions to the
    nearest.

    Args:
      environment: one environment or a batch.
      dtype: a dtype of floats.

    Raises:
      SpecError: `dtype` is none of floats.
    """

    def __init__(self, environment: dm_env.Environment, dtype: npt.DTypeLike = np.float32):
        self._dtype = np.dtype(dtype)
        if self._dtype.kind != "f":
            raise SpecError(f"floats are cast to a dtype of floats, got {self._dtype}")
        super().__init__(environment)

    def adopt_specs(self) -> None:
        own = by_name(self.environment.action_spec())
        self._own_actions = {name: spec for name, spec in own.items() if self._is_cast(spec.dtype)}

    def action_spec(self) -> Any:
        """Returns the specs of the actions."""
        return map_named(self._action_spec, self.environment.action_spec())

    def observation_spec(self) -> Any:
        """Returns the specs of the observations."""
        return map_named(self._spec, self.environment.observation_spec())

    def reward_spec(self) -> Any:
        """Returns the spec of the reward."""
        return map_named(self._spec, self.environment.reward_spec())

    def discount_spec(self) -> Any:
        """Returns the spec of the discount."""
        return map_named(self._spec, self.environment.discount_spec())

    def convert_action(self, action: Any) -> Any:
        def convert(name: str, spec: specs.Array, value: Any) -> Any:
            array = casting.as_array(value, where(name))
            return casting.exact_cast(array, spec.dtype, where(name))

        return map_actions(convert, self._own_actions, action)

    def convert_timestep(
        self, timestep: dm_env.TimeStep, env_ids: npt.NDArray[np.int64] | None
    ) -> dm_env.TimeStep:
        return timestep._replace(
            reward=map_named(self._value, timestep.reward),
            discount=map_named(self._value, timestep.discount),
            observation=map_named(self._value, timestep.observation),
        )

    def _is_cast(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind == "f" and dtype != self._dtype

    def _value(self, name: str, value: Any) -> Any:
        is_cast = self._is_cast(np.asarray(value).dtype)
        return _cast(value, self._dtype)[()] if is_cast else value

    def _spec(self, name: str, spec: specs.Array) -> specs.Array:
        if not self._is_cast(spec.dtype):
            return spec
        if not isinstance(spec, specs.BoundedArray):
            return spec.replace(dtype=self._dtype)
        low, high = _cast(spec.minimum, self._dtype), _cast(spec.maximum, self._dtype)
        return spec.replace(dtype=self._dtype, minimum=low, maximum=high)

    def _action_spec(self, name: str, spec: specs.Array) -> specs.Array:
        cast = self._spec(name, spec)
        if cast is spec or not isinstance(cast, specs.BoundedArray):
            return cast
        low, high = cast.minimum, cast.maximum
        low = np.where(low < spec.minimum, np.nextafter(low, low.dtype.type(np.inf)), low)
        high = np.where(high > spec.maximum, np.nextafter(high, low.dtype.type(-np.inf)), high)
        if np.any(low > high):
            return spec  # There is no value of the dtype between the bounds.
        return cast.replace(minimum=low, maximum=high)


def _cast(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(dtype)
