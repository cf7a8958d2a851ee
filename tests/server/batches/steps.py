"""How a client resets and steps a batch, and what it sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
import tree

from dm_env_rpc_client import DmEnvAdaptor, DmEnvRpcError, make
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.protocol.batches import ROW_ERRORS, STEP_TYPE, row_errors
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


Told = tuple[int, float, float, int, str]
"""The type of a step, its reward and discount, the number of the TimeStep, and the method."""


def _of_single(env: DmEnvAdaptor, timestep: dm_env.TimeStep) -> Told:
    seen = timestep.observation
    reward = 0.0 if timestep.reward is None else float(timestep.reward)
    discount = 1.0 if timestep.discount is None else float(timestep.discount)
    return int(timestep.step_type), reward, discount, int(seen["count"]), seen["method"]


def _of_row(env: DmEnvAdaptor, timestep: dm_env.TimeStep) -> Told:
    errors = row_errors(timestep.observation[ROW_ERRORS], 2)
    if errors:
        assert errors.keys() == {0, 1}
        assert errors[0] == errors[1]
        raise RowError(errors[1])
    seen = {name: values[1] for name, values in timestep.observation.items() if np.ndim(values)}
    reward = 0.0 if timestep.reward is None else float(timestep.reward[1])
    discount = 1.0 if timestep.discount is None else float(timestep.discount[1])
    return int(seen[STEP_TYPE]), reward, discount, int(seen["count"]), seen["method"]


class RowError(Exception):
    """A row has failed."""


def play(address: str, settings: Mapping[str, Any], count: int) -> list[Told | str]:
    """Returns what a client is told of some steps, or the errors."""
    has_rows = "num_envs" in settings
    told: list[Told | str] = []
    with make(address, settings) as env:
        action = {"action": np.zeros(2, np.int32) if has_rows else 0}
        for number in range(count):
            try:
                timestep = env.step(action) if number else env.reset()
                told.append((_of_row if has_rows else _of_single)(env, timestep))
            except (DmEnvRpcError, RowError) as error:
                told.append(str(error))
    return told
