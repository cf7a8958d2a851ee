"""How a client resets and steps a batch, and what it sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
import tree

from dm_env_rpc_client import DmEnvAdaptor
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.tensors import nesting


def stepped(env: DmEnvAdaptor, action: Any) -> dict[str, Any]:
    """Takes a step and returns its values by flat name, with the type of the step."""
    return values_of(env, env.step(action))


def begun(env: DmEnvAdaptor, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Resets and returns the values of the first step."""
    return values_of(env, env.reset(settings or {}))


def values_of(env: DmEnvAdaptor, timestep: dm_env.TimeStep) -> dict[str, Any]:
    flat = nesting.flatten_dict(timestep.observation, nesting.SEPARATOR)
    # A FIRST step has neither; what is sent for those of rows is 0 and 1.
    reward, discount = timestep.reward, timestep.discount
    if reward is None:
        reward = tree.map_structure(lambda spec: np.zeros(spec.shape), env.reward_spec())
    flat["reward"] = reward
    flat["discount"] = np.ones(env.discount_spec().shape) if discount is None else discount
    flat.setdefault(batches.STEP_TYPE, np.uint8(timestep.step_type))
    return flat
