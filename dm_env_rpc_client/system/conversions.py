"""Environments of other libraries, converted by the adaptor for their library.

The server and the bridges convert what a user's factory returns, and know no adaptors. So the
adaptors' functions stand here by name; their modules are imported when there is such an
environment, and with it its library.
"""

from __future__ import annotations

import pkgutil
from typing import Any

import dm_env

_GYMNASIUM = "dm_env_rpc_client.adaptors.gymnasium.to_dm_env:as_environment"
"""Takes an environment of Gymnasium and returns a dm_env.Environment."""

_VECTOR = "dm_env_rpc_client.adaptors.gymnasium.vector_to_dm_env:GymnasiumVectorEnvironment"
"""The same for a vector environment of Gymnasium."""

_PETTINGZOO = "dm_env_rpc_client.adaptors.pettingzoo.game:as_game"
"""Takes an environment of PettingZoo and returns a `Game`."""


def converted(made: Any) -> Any:
    """Returns an environment of Gymnasium or PettingZoo in the form in which it is served.

    Args:
      made: what a factory returned.

    Returns:
      A `GymnasiumEnvironment`, a `GymnasiumVectorEnvironment` or a `PettingZooGame`; anything else
      as it is.

    Raises:
      SpecError: the environment cannot be served, for instance as there is no spec for a space.
    """
    converter = _converter(made)
    return made if converter is None else pkgutil.resolve_name(converter)(made)


def _converter(made: Any) -> str | None:
    if isinstance(made, dm_env.Environment):
        return None
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(made).__mro__}
    if bases & {("pettingzoo", "AECEnv"), ("pettingzoo", "ParallelEnv")}:
        return _PETTINGZOO
    if hasattr(made, "num_envs") and hasattr(made, "single_action_space"):
        return _VECTOR
    # By its members: environments of the older package gym have them, too.
    if hasattr(made, "action_space") and hasattr(made, "observation_space"):
        return _GYMNASIUM
    return None
