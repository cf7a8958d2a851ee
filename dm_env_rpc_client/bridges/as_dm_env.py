"""What the factory of a server made, as a dm_env.Environment if it is a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import dm_env

__all__ = ["as_dm_env"]


def as_dm_env(made: Any) -> Any:
    """Returns a Gymnasium environment as a `GymnasiumEnvironment`, and anything else as it is.

    Args:
      made: what a factory returned.

    Raises:
      SpecError: there is no spec for a space of the environment.
      RuntimeError: it is a vector of Gymnasium environments.
    """
    is_gymnasium = hasattr(made, "action_space") and hasattr(made, "observation_space")
    if isinstance(made, dm_env.Environment) or not is_gymnasium:
        return made
    if hasattr(made, "num_envs"):
        made.close()  # They may be processes.
        raise RuntimeError(
            f"the factory returned {type(made).__name__}, a vector of {made.num_envs} environments;"
            " return one environment. Each client makes as many as it wants, for instance with "
            "gymnasium.make_vec"
        )
    # Imported here, because Gymnasium is an extra.
    from dm_env_rpc_client.bridges.gymnasium_environment import GymnasiumEnvironment

    return GymnasiumEnvironment(made)
