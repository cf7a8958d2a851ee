"""One action for several steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import dm_env
import numpy as np
import numpy.typing as npt
import tree
from dm_env import specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.wrappers.wrapper import Wrapper
from dm_env_rpc_client.errors import SpecError

Array = npt.NDArray[Any]


class ActionRepeat(Wrapper):
    """Takes each action several times, and returns the last TimeStep.

    Its discount is the product of those of all steps. Its reward is the sum of their rewards, each
    times the discounts before it: with discounts of 1, as in most environments, the plain sum. A
    step after which the sequence has ended is not repeated, and neither is one that begins a
    sequence. Rewards and discounts are as in acme's ActionRepeatWrapper, which does not begin
    sequences in `step`.

    In a batch each environment stops at its own LAST, while the others go on.

    Args:
      environment: one environment or a batch. Of a batch, `step` is repeated; `send` and `recv`
        are refused.
      count: how often an action is taken.

    Raises:
      SpecError: `count` is less than 1, or there is more than one array of rewards or discounts.
    """

    def __init__(self, environment: dm_env.Environment, count: int):
        self._count = arguments.count("count", count)
        super().__init__(environment)

    def adopt_specs(self) -> None:
        reward, discount = self.environment.reward_spec(), self.environment.discount_spec()
        if not (isinstance(reward, specs.Array) and isinstance(discount, specs.Array)):
            raise SpecError(
                f"an environment with one array of rewards and one of discounts is expected, got "
                f"{reward} and {discount}"
            )
        # Half a reward is not an integer.
        is_float = reward.dtype.kind == "f"
        self._dtype = reward.dtype if is_float else np.result_type(reward.dtype, discount.dtype)
        self._reward_spec = self._repeated_reward(reward, discount)
        self._discount_spec = self._repeated_discount(discount)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a step `count` times; see `Wrapper.step`."""
        return self._step(action) if self.num_envs is None else self._step_batch(action)

    def send(self, action: Any, env_ids: Sequence[int] | Array | None = None) -> NoReturn:
        """Raises SpecError."""
        raise SpecError("ActionRepeat cannot send steps without waiting for them; use step")

    def recv(self, min_envs: int = 1, max_envs: int | None = None) -> NoReturn:
        """Raises SpecError."""
        raise SpecError("ActionRepeat cannot send steps without waiting for them; use step")

    def reward_spec(self) -> specs.Array:
        """Returns the spec of the summed reward; its bounds are those of the sum."""
        return self._reward_spec

    def discount_spec(self) -> specs.Array:
        """Returns the spec of the product of the discounts."""
        return self._discount_spec

    def _step(self, action: Any) -> dm_env.TimeStep:
        timestep = self.environment.step(action)
        if timestep.first():
            return timestep
        reward, discount = np.asarray(timestep.reward, self._dtype), np.asarray(timestep.discount)
        for _ in range(1, self._count):
            if timestep.last():
                break
            timestep = self.environment.step(action)
            reward = self._sum(reward, discount, timestep.reward)
            discount = discount * np.asarray(timestep.discount, discount.dtype)
        reward = _within(self._reward_spec, reward)
        discount = _within(self._discount_spec, discount)
        return timestep._replace(reward=reward[()], discount=discount[()])

    def _step_batch(self, action: Any) -> dm_env.TimeStep:
        batch = self._batch()
        timestep = batch.step(action)
        step_type = np.array(timestep.step_type)
        reward, discount = np.array(timestep.reward, self._dtype), np.array(timestep.discount)
        observation = timestep.observation
        for _ in range(1, self._count):
            going = np.flatnonzero(step_type == dm_env.StepType.MID)
            if not going.size:
                break
            if going.size == step_type.size:
                timestep, ids = batch.step(action), going
                observation = timestep.observation
            else:
                batch.send(_rows(action, going), going)
                timestep, ids = batch.recv(going.size)
                _put(observation, ids, timestep.observation)
            step_type[ids] = timestep.step_type
            reward[ids] = self._sum(reward[ids], discount[ids], timestep.reward)
            discount[ids] = discount[ids] * timestep.discount
        # Rows of FIRST steps have reward 0 and discount 1, also beyond the bounds.
        has = step_type != dm_env.StepType.FIRST
        reward[has] = _within(self._reward_spec, reward)[has]
        discount[has] = _within(self._discount_spec, discount)[has]
        return dm_env.TimeStep(step_type, reward, discount, observation)

    def _sum(self, reward: Array, discount: Array, more: Any) -> Array:
        weight = discount.reshape(discount.shape + (1,) * (reward.ndim - discount.ndim))
        return np.asarray(reward + weight * more, self._dtype)

    def _repeated_reward(self, reward: specs.Array, discount: specs.Array) -> specs.Array:
        if isinstance(reward, specs.BoundedArray) and _is_fraction(discount):
            low, high = (np.asarray(b, np.float64) for b in (reward.minimum, reward.maximum))
            if self._count > 1:
                # The first counts in full; each other by up to 1, or not at all if there is none.
                low = low + (self._count - 1) * np.minimum(low, 0)
                high = high + (self._count - 1) * np.maximum(high, 0)
            with np.errstate(over="ignore"):
                bounds = low.astype(self._dtype), high.astype(self._dtype)
            return specs.BoundedArray(reward.shape, self._dtype, *bounds, reward.name)
        return specs.Array(reward.shape, self._dtype, reward.name)

    def _repeated_discount(self, discount: specs.Array) -> specs.Array:
        if _is_fraction(discount):
            low = np.asarray(discount.minimum) ** self._count
            return specs.BoundedArray(
                discount.shape, discount.dtype, low, discount.maximum, discount.name
            )
        return specs.Array(discount.shape, discount.dtype, discount.name)


def _is_fraction(discount: specs.Array) -> bool:
    return (
        isinstance(discount, specs.BoundedArray)
        and bool(np.all(discount.minimum >= 0))
        and bool(np.all(discount.maximum <= 1))
    )


def _within(spec: specs.Array, value: Array) -> Array:
    """Takes back what rounding has put beyond the bounds."""
    if isinstance(spec, specs.BoundedArray):
        return np.asarray(np.clip(value, spec.minimum, spec.maximum), spec.dtype)
    return value


def _rows(action: Any, ids: npt.NDArray[np.int64]) -> Any:
    """Returns the actions of some environments of a batch."""
    if isinstance(action, Mapping):
        return {name: _rows(value, ids) for name, value in action.items()}
    if isinstance(action, np.ndarray):
        return action[ids]
    return [action[index] for index in ids]


def _put(whole: Any, ids: npt.NDArray[np.int64], part: Any) -> None:
    """Writes the observations of some environments of a batch among those of all."""
    tree.map_structure(lambda to, rows: to.__setitem__(ids, rows), whole, part)
