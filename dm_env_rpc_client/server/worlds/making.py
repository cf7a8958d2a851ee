"""Makes worlds of what is served, each in the thread of its owner."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client.server.construction import construct
from dm_env_rpc_client.server.factories import Factory
from dm_env_rpc_client.server.instances import Instance
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.turns import Waits
from dm_env_rpc_client.server.worlds.environment_world import EnvironmentWorld
from dm_env_rpc_client.server.worlds.game import Game
from dm_env_rpc_client.server.worlds.shared_world import SharedWorld
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.system import owners
from dm_env_rpc_client.system.main_owner import MainOwner
from dm_env_rpc_client.system.owners import ElsewhereError, Owner, OwnerThread

_numbers = itertools.count(1)


class Kind:
    """What worlds are made of, and what is known of them.

    A world belongs to a thread before there is anything of it. That is the one that leads, which
    reads its requests, too; or a new one if worlds of this kind are known to be slow, or to wait.

    Args:
      factory: makes environments, games or worlds; or is an `Instance`.
      options: has the default actions, and the timeout of steps in a game.
      main: the owner of all worlds; None if there is no such.

    Attributes:
      is_slow: whether answers of its worlds take long.
    """

    def __init__(self, factory: Factory, options: ServeOptions, main: MainOwner | None = None):
        self._factory = factory
        self._options = options
        self._main = main
        self.is_slow = self._are_games = False
        self._waits = Waits(options.threads == "world", main is None)
        if isinstance(factory, Instance) and main is not None:
            factory.give_to(main)

    @property
    def is_instance(self) -> bool:
        """Whether there is one environment, which existed before."""
        return isinstance(self._factory, Instance)

    def owner(self) -> Owner:
        """Returns the thread to which a new world is to belong.

        Raises:
          ElsewhereError: this thread is an owner, and it is another one.
        """
        self.require_thread()
        if isinstance(self._factory, Instance):
            return self._factory.owner
        return self._main or owners.current() or new_owner()

    def require_thread(self) -> None:
        """Raises ElsewhereError as `owner`."""
        here = owners.current()
        if here is None:
            return
        if isinstance(self._factory, Instance):
            is_apart = here is not self._factory.owner
        elif self._main is not None:
            is_apart = here is not self._main
        else:
            is_apart = self.is_slow or self._are_games or self._options.threads == "world"
            is_apart |= not here.leads
        if is_apart:
            raise ElsewhereError

    def make(self, owner: Owner, settings: Mapping[str, Any]) -> World:
        """Makes a world, in the thread of its owner.

        Args:
          owner: that thread; another one may call this.
          settings: of the CreateWorld, by flat name.

        Raises:
          RequestError: the factory does not take these settings.
          Exception: whatever the factory raises; or what it made cannot be served.
        """
        return owner.call(self._make, owner, settings)

    def _make(self, owner: Owner, settings: Mapping[str, Any]) -> World:
        factory, options = self._factory, self._options
        # Until the world holds it, or there is none.
        owner.hold()
        try:
            if isinstance(factory, Instance):
                made, make_again = factory.construct(settings), factory.refuse
            else:
                make_again = functools.partial(
                    construct, factory, autoreset_mode=options.autoreset_mode, waits=self._waits
                )
                made = make_again(settings)
            if isinstance(made, World | Game):
                self._are_games = True
                return hosting(made, options, owner)
            return EnvironmentWorld(
                owner,
                make_again,
                made,
                settings,
                options.default_actions,
                (options.callable_names, options.settable_names),
            )
        finally:
            owner.release()


def hosting(made: World | Game, options: ServeOptions, owner: Owner | None = None) -> World:
    """Returns a world as it is, or a world that runs a game.

    Args:
      made: the world or the game.
      options: how to serve.
      owner: the thread to which the game belongs; None for one of its own.
    """
    if isinstance(made, World):
        return made
    return SharedWorld(made, options.step_timeout, options.default_actions, owner)


def new_owner() -> Owner:
    """Returns the owner of one world."""
    return OwnerThread(f"dm_env_rpc owns a world ({next(_numbers)})")
