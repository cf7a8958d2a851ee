"""Makes worlds of what is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client.server.construction import construct
from dm_env_rpc_client.server.factories import Factory
from dm_env_rpc_client.server.instances import Instance
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.worlds.environment_world import EnvironmentWorld
from dm_env_rpc_client.server.worlds.game import Game
from dm_env_rpc_client.server.worlds.shared_world import SharedWorld
from dm_env_rpc_client.server.worlds.world import World


def make_world(factory: Factory, settings: Mapping[str, Any], options: ServeOptions) -> World:
    """Makes a world of what a factory makes, or of an environment that existed before.

    Args:
      factory: makes an environment, a game or a world; or is an `Instance`.
      settings: of the CreateWorld, by flat name.
      options: has the default actions, and the timeout of steps in a game.

    Raises:
      RequestError: the factory does not take these settings.
      Exception: whatever the factory raises; or what it made cannot be served.
    """
    if isinstance(factory, Instance):
        made, make_again = factory.construct(settings), factory.refuse
    else:
        made, make_again = construct(factory, settings, options.autoreset_mode), factory
    if isinstance(made, World | Game):
        return hosting(made, options)
    return EnvironmentWorld(
        make_again,
        made,
        settings,
        options.default_actions,
        (options.callable_names, options.settable_names),
        options.autoreset_mode,
    )


def hosting(made: World | Game, options: ServeOptions) -> World:
    """Returns a world as it is, or a world that runs a game."""
    if isinstance(made, World):
        return made
    return SharedWorld(made, options.step_timeout, options.default_actions)
