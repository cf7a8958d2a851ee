"""Policies for running an environment without an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import tree

from dm_env_rpc_client.compliance.options import Options
from dm_env_rpc_client.tensors.sampling import sample

Policy = Callable[[dm_env.TimeStep], Any]


def make_policy(name: str, action_spec: Any, seed: int | None) -> Policy:
    """Returns a policy by its name.

    Args:
      name: "random" samples every action from its spec; "constant" takes the value that
        the spec generates; MODULE:FUNCTION is a function that takes the TimeStep and the
        action spec and returns the action.
      action_spec: of the environment.
      seed: of the random policy.

    Raises:
      SpecError: the policy does not exist.
    """
    function = Options(policy=name).load_policy()
    if function is not None:
        return lambda timestep: function(timestep, action_spec)
    if name == "random":
        random = np.random.default_rng(seed)
        return lambda _: tree.map_structure(lambda spec: sample(spec, random), action_spec)
    constant = tree.map_structure(lambda spec: spec.generate_value(), action_spec)
    return lambda _: constant
