"""dm_env TimeSteps from the state and the observations of a StepResponse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from dm_env_rpc_client.errors import SpecError

__all__ = ["DISCOUNT", "REWARD", "default_discount", "stack"]

REWARD = "reward"
"""The observation that is the reward ("Reward and discount" in the protocol overview)."""

DISCOUNT = "discount"
"""The observation that is the discount."""


def default_discount(step_type: dm_env.StepType, terminated: bool) -> float:
    """The discount of a server that sends none: 0 after a true end, otherwise 1."""
    return 0.0 if step_type is dm_env.StepType.LAST and terminated else 1.0


def stack(timesteps: Sequence[dm_env.TimeStep]) -> dm_env.TimeStep:
    """Stacks TimeSteps along a new first axis, time.

    Args:
      timesteps: at least one, all of one structure.

    Returns:
      A TimeStep of arrays: `step_type` int [T]; `reward` and `discount` [T, ...], where
      a FIRST step, which has neither, counts as reward 0 and discount 1; `observation`
      the structure of one step, each leaf [T, ...].

    Raises:
      SpecError: there are none, or a leaf or the structure changes from step to step.
    """
    if not timesteps:
        raise SpecError("cannot stack no TimeSteps")
    try:
        return dm_env.TimeStep(
            step_type=np.array([step.step_type for step in timesteps]),
            reward=_stack_optional([step.reward for step in timesteps], 0),
            discount=_stack_optional([step.discount for step in timesteps], 1),
            observation=tree.map_structure(
                _stack_leaves, *(step.observation for step in timesteps)
            ),
        )
    except (TypeError, ValueError) as error:
        raise SpecError(f"TimeSteps of different shapes cannot be stacked: {error}") from error


def _stack_leaves(*leaves: Any) -> Any:
    if isinstance(leaves[0], str):
        # As objects, for NumPy's own strings would pad each to the longest.
        leaves = tuple(np.array(leaf, object) for leaf in leaves)
    return np.stack(leaves)


def _stack_optional(values: list[Any], stand_in: int) -> Any:
    """Stacks structures, with one filled with `stand_in` in place of each None."""
    present = next((value for value in values if value is not None), 0.0)
    missing = tree.map_structure(lambda leaf: np.full_like(leaf, stand_in), present)
    filled = [missing if value is None else value for value in values]
    return tree.map_structure(_stack_leaves, *filled)
