"""Environments of other libraries, converted by the adaptor for their library.

The server converts what a user's factory returns, and knows no adaptors. So the adaptors'
functions stand here by name; their modules are imported when there is such an environment, and
with it its library.
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


_VECTOR_MODE = "dm_env_rpc_client.adaptors.gymnasium.vector_to_dm_env:autoreset_mode_of"
"""Takes a vector environment and the mode of those that declare none, and returns its mode."""


def converted(made: Any, autoreset_mode: str | None = None) -> Any:
    """Returns an environment of Gymnasium or PettingZoo in the form in which it is served.

    Args:
      made: what a factory returned.
      autoreset_mode: of vector environments that declare none.

    Returns:
      A `GymnasiumEnvironment`, a `GymnasiumVectorEnvironment` or a `PettingZooGame`; anything else
      as it is.

    Raises:
      SpecError: the environment cannot be served, for instance as there is no spec for a space.
      TypeError: an environment of Gymnasium has no spaces.
    """
    converter = _converter(made)
    if converter is None:
        return made
    own = [autoreset_mode] if converter is _VECTOR else []
    return pkgutil.resolve_name(converter)(made, *own)


def check_mode(made: Any, autoreset_mode: str | None) -> None:
    """Raises SpecError if an environment is a vector environment whose mode is not known.

    Args:
      made: any environment.
      autoreset_mode: of vector environments that declare none.
    """
    if _is_vector(made):
        pkgutil.resolve_name(_VECTOR_MODE)(made, autoreset_mode)


def is_gymnasium(made: Any) -> bool:
    """Whether this is an environment of Gymnasium or gym, and no vector environment.

    Raises:
      TypeError: it is one that has no spaces.
    """
    return _converter(made) is _GYMNASIUM


def is_foreign(kind: type) -> bool:
    """Whether a class is one of the environments of Gymnasium, gym or PettingZoo, by its bases."""
    return bool(_bases(kind) & (_PETTINGZOO_BASES | _GYMNASIUM_BASES))


def _converter(made: Any) -> str | None:
    if isinstance(made, dm_env.Environment | type):
        return None
    bases = _bases(type(made))
    if bases & _PETTINGZOO_BASES:
        return _PETTINGZOO
    if _is_vector(made):
        return _VECTOR
    # By its members: environments of the older package gym have them, too.
    missing = [name for name in ("action_space", "observation_space") if not hasattr(made, name)]
    if not missing:
        return _GYMNASIUM
    if bases & _GYMNASIUM_BASES:
        raise TypeError(
            f"{type(made).__name__} has no {' and no '.join(missing)}; set self.action_space and "
            "self.observation_space in its __init__"
        )
    return None


def _is_vector(made: Any) -> bool:
    return hasattr(made, "num_envs") and hasattr(made, "single_action_space")


_PETTINGZOO_BASES = {("pettingzoo", "AECEnv"), ("pettingzoo", "ParallelEnv")}
_GYMNASIUM_BASES = {("gymnasium", "Env"), ("gymnasium", "VectorEnv"), ("gym", "Env")}
"""The packages and the names of classes of environments, which need not be imported."""


def _bases(kind: type) -> set[tuple[str, str]]:
    return {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}
