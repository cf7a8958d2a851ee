"""Policies for running an environment without an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import tree
from dm_env import specs

from dm_env_rpc_client.cli.arguments import load_object
from dm_env_rpc_client.cli.failures import UsageError

__all__ = ["Policy", "make_policy", "sample"]

Policy = Callable[[dm_env.TimeStep], Any]

_WIDEST = 2**31 - 1


def make_policy(name: str, action_spec: Any, seed: int | None) -> Policy:
    """Returns a policy by its name.

    Args:
      name: "random" draws every action from its spec; "constant" takes the value that
        the spec generates; MODULE:FUNCTION is called with the TimeStep and the action
        spec and returns the action.
      action_spec: the environment's.
      seed: of the random policy.

    Raises:
      UsageError: there is no such policy.
    """
    if name == "random":
        random = np.random.default_rng(seed)
        return lambda _: tree.map_structure(lambda spec: sample(spec, random), action_spec)
    if name == "constant":
        constant = tree.map_structure(lambda spec: spec.generate_value(), action_spec)
        return lambda _: constant
    if ":" not in name:
        raise UsageError(f"no policy {name!r}; choose random, constant or MODULE:FUNCTION")
    function = load_object(name, "a policy")
    if not callable(function):
        raise UsageError(f"{name} is no function")
    return lambda timestep: function(timestep, action_spec)


def sample(spec: specs.Array, random: np.random.Generator) -> Any:
    """Draws a value that conforms to `spec`.

    Within its bounds evenly; normally distributed where a float has none; any number of
    32 bits where an integer has none; and what the spec generates for anything else.
    """
    template = spec.generate_value()
    shape, dtype = np.shape(template), spec.dtype
    bounded = isinstance(spec, specs.BoundedArray)
    if dtype.kind == "b":
        return random.integers(2, size=shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low = spec.minimum if bounded else max(info.min, -_WIDEST)
        high = spec.maximum if bounded else min(info.max, _WIDEST)
        return random.integers(low, high, size=shape, dtype=dtype, endpoint=True)
    if dtype.kind == "f":
        finite = np.finfo(dtype).max / 2
        low = np.clip(spec.minimum if bounded else -np.inf, -finite, finite)
        high = np.clip(spec.maximum if bounded else np.inf, -finite, finite)
        even = random.random(shape)
        drawn = np.where(
            high - low < finite,
            low + (high - low) * even,
            np.clip(random.standard_normal(shape), low, high),
        )
        return (
            np.clip(drawn.astype(dtype), spec.minimum, spec.maximum)
            if bounded
            else (drawn.astype(dtype))
        )
    return template
