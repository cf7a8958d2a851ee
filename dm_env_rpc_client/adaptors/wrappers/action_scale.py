"""Bounded actions on one scale, such as -1 to 1."""

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


class ActionScale(Wrapper):
    """Actions between the same bounds, whatever those of the environment are.

    All bounded actions of floats are scaled linearly: `minimum` becomes the environment's own
    minimum, exactly, and `maximum` its maximum. Their specs keep shape and dtype. Integers,
    texts and actions without bounds stay as they are. Actions out of bounds are refused.

    It is acme's CanonicalSpecWrapper, which also changes the specs of integers, and dm_control's
    `action_scale.Wrapper`, which takes one array of actions; both let actions out of bounds pass.

    Args:
      environment: one environment or a batch.
      minimum: the new minimum; a number, or an array that fits the shape of all scaled actions.
      maximum: the new maximum, greater than `minimum`.
      clip: move actions that are out of bounds to the nearest bound instead of refusing them.

    Raises:
      SpecError: no action can be scaled; a bound of a BoundedArray is not finite; or `minimum` and
        `maximum` are not finite, not in order or not of the shape of the actions.
    """

    def __init__(
        self,
        environment: dm_env.Environment,
        minimum: npt.ArrayLike = -1.0,
        maximum: npt.ArrayLike = 1.0,
        *,
        clip: bool = False,
    ):
        self._minimum, self._maximum = np.asarray(minimum), np.asarray(maximum)
        self._clip = clip
        if not _is_range(self._minimum, self._maximum) or np.any(self._minimum == self._maximum):
            raise SpecError(
                "actions are scaled to finite bounds of which the minimum is less, got "
                f"{minimum!r} and {maximum!r}"
            )
        super().__init__(environment)

    def adopt_specs(self) -> None:
        own = self.environment.action_spec()
        self._own = {name: spec for name, spec in by_name(own).items() if _has_bounds(spec)}
        if not self._own:
            raise SpecError(f"no action has bounds and is of floats; the action spec is {own}")
        for name, spec in self._own.items():
            if not _is_range(spec.minimum, spec.maximum):
                raise SpecError(
                    f"{where(name)} cannot be scaled: its bounds are {spec.minimum} and "
                    f"{spec.maximum}, expected finite ones"
                )
        self._scaled = {name: self._scaled_spec(name, spec) for name, spec in self._own.items()}

    def action_spec(self) -> Any:
        """Returns the specs of the actions, with the new bounds."""
        return map_named(self._scaled.get, self.environment.action_spec())

    def convert_action(self, action: Any) -> Any:
        return map_actions(self._convert, self._scaled, action)

    def _convert(self, name: str, scaled: specs.BoundedArray, value: Any) -> Any:
        array = casting.exact_cast(
            casting.as_array(value, where(name)), np.dtype(np.float64), where(name)
        )
        sizes, expected = array.shape[self._batch_axes :], scaled.shape[self._batch_axes :]
        if array.ndim != len(scaled.shape) or any(
            of_spec not in (-1, size) for size, of_spec in zip(sizes, expected, strict=True)
        ):
            raise SpecError(
                f"{where(name)} has shape {list(array.shape)}, expected {list(scaled.shape)}"
            )
        low, high = (np.asarray(bound, np.float64) for bound in (scaled.minimum, scaled.maximum))
        if self._clip:
            array = np.clip(array, low, high)
        is_inside = (low <= array) & (array <= high)  # NaN is outside.
        if not is_inside.all():
            raise SpecError(
                f"{where(name)} is {array[~is_inside][0].item()!r}, outside its bounds "
                f"[{scaled.minimum}, {scaled.maximum}]; clip=True clips"
            )
        own = self._own[name]
        own_low, own_high = (np.asarray(bound, np.float64) for bound in (own.minimum, own.maximum))
        part = (array - low) / (high - low)
        # Exact at both bounds; elsewhere rounding may exceed them.
        value = np.clip(own_low * (1 - part) + own_high * part, own_low, own_high)
        return value.astype(own.dtype)

    def _scaled_spec(self, name: str, spec: specs.BoundedArray) -> specs.BoundedArray:
        try:
            return spec.replace(minimum=self._minimum, maximum=self._maximum)
        except ValueError as error:
            raise SpecError(
                f"{where(name)} has shape {list(spec.shape)}, which the bounds {self._minimum} and "
                f"{self._maximum} do not fit"
            ) from error


def _has_bounds(spec: specs.Array) -> bool:
    return isinstance(spec, specs.BoundedArray) and spec.dtype.kind == "f"


def _is_range(minimum: npt.NDArray[Any], maximum: npt.NDArray[Any]) -> bool:
    """Whether both are finite and in order; their difference may be infinite, too."""
    with np.errstate(over="ignore", invalid="ignore"):
        difference = np.asarray(maximum, np.float64) - np.asarray(minimum, np.float64)
    return bool(np.all(np.isfinite(difference) & (difference >= 0)))
