"""A library as an environment factory for a server; imports no server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import dm_env

from dm_env_rpc_client.bridges.env_c_api.declarations import layout
from dm_env_rpc_client.bridges.env_c_api.environment import EnvCApiEnvironment
from dm_env_rpc_client.bridges.env_c_api.text_settings import text_settings
from dm_env_rpc_client.errors import SpecError


def environment_factory(
    library: str | os.PathLike[str],
    connect: str,
    *,
    version: str = "1.4",
    settings: Mapping[str, Any] = MappingProxyType({}),
    **kwargs: Any,
) -> Callable[..., dm_env.Environment]:
    """Returns an environment factory for `dm_env_rpc_client.server.serve`.

    Every world is a context of its own in a child process of its own, so that a crash of the
    library is an error in one world only. The settings of CreateWorld are settings of the
    library, except for two: `seed`, the seed of the first episode, and `episode`, its ID. Both
    are incremented for each later episode.

    Args:
      library: the path of the library.
      connect: the name of its connect function, or "+0x1234", its offset.
      version: the version of the env_c_api.h with which the library was compiled.
      settings: settings of the library; the settings of CreateWorld override them.
      **kwargs: further arguments of `EnvCApiEnvironment`.

    Raises:
      SpecError: there is no such file, the version is unknown, or the type of a setting is invalid.
      ModuleNotFoundError: the extra `c` is not installed.
    """
    layout(version)
    defaults = text_settings(settings)
    path = os.path.abspath(library)
    if not os.path.isfile(path):
        raise SpecError(f"there is no library {path}")

    def make(
        *, seed: int | None = None, episode: int = 0, **create_settings: Any
    ) -> EnvCApiEnvironment:
        return EnvCApiEnvironment(
            path,
            connect,
            version=version,
            settings={**defaults, **text_settings(create_settings)},
            episode_seeds=seed,
            first_episode=episode,
            isolated=True,
            **kwargs,
        )

    return make
