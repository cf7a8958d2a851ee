"""Stand-ins through which any thread can use environments and games owned by one thread.

The owner's thread calls the methods of the original object and reads its attributes.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import dm_env

from dm_env_rpc_client.server.errors import RequestError
from dm_env_rpc_client.server.properties import Properties, properties_of
from dm_env_rpc_client.server.worlds.flat_specs import discount_spec_of
from dm_env_rpc_client.server.worlds.world import Game, Player
from dm_env_rpc_client.system.foreign_environments import class_name
from dm_env_rpc_client.system.owner_threads import Owner


def _forwarded(name: str) -> Callable[..., Any]:
    """Return a method that has the owner call the original method `name`."""

    def method(self: Any, *arguments: Any) -> Any:
        return self._owner.call(methodcaller(name, *arguments), self._owned)

    return method


class StandIn(abc.ABC):
    """A stand-in for an environment owned by another thread or process."""

    @abc.abstractmethod
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with the environment, in the thread that owns the environment.

        Args:
          function: can be sent to another process, like its arguments and its result.
          *arguments: the arguments after the environment.
        """


class OwnedEnvironment(dm_env.Environment, StandIn):
    """An environment that can be called from any thread.

    Attributes beyond those of dm_env.Environment come from the original; the owner calls the
    methods among them.

    Args:
      environment: the original.
      owner: calls it.
      close: called by the owner to close it.
    """

    def __init__(self, environment: Any, owner: Owner, close: Callable[[], None]):
        self._owned = environment
        self._owner = owner
        self._close = close

    @property
    def served_name(self) -> str:
        """The name of the environment's class."""
        return class_name(self._owned)

    reset = _forwarded("reset")
    step = _forwarded("step")
    action_spec = _forwarded("action_spec")
    observation_spec = _forwarded("observation_spec")
    reward_spec = _forwarded("reward_spec")

    def discount_spec(self) -> Any:
        return self._owner.call(discount_spec_of, self._owned)

    def close(self) -> None:
        self._owner.call(self._close)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._owner.call(function, self._owned, *arguments)

    def owned_properties(self, allowed: tuple[Sequence[str], Sequence[str]]) -> Properties | None:
        """Return the properties of the environment; see `properties_of`."""
        found = self._owner.call(properties_of, self._owned, allowed)
        return None if found is None else OwnedProperties(found, self._owner)

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling look for such names, and must not call the environment.
        if name.startswith("_"):
            raise AttributeError(name)
        found = self._owner.call(getattr, self._owned, name)
        return functools.partial(self._owner.call, found) if callable(found) else found


def in_thread_of(environment: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with an environment, in the thread that owns the environment.

    Args:
      environment: an environment of this thread, or a stand-in.
      function: as for `StandIn.run`.
      *arguments: the arguments after the environment.
    """
    if isinstance(environment, StandIn):
        return environment.run(function, *arguments)
    return function(environment, *arguments)


class OwnedGame(Game):
    """A game that can be called from any thread.

    Args:
      game: the original.
      owner: calls it.
      close: called by the owner to close it.
    """

    def __init__(self, game: Game, owner: Owner, close: Callable[[], None]):
        self._owned = game
        self._owner = owner
        self._close = close
        # Read once: every step needs them, in threads that do not own the game.
        self.is_lock_step = owner.call(getattr, game, "is_lock_step")
        self.default_actions: Mapping[str, Any] = owner.call(getattr, game, "default_actions")
        properties = owner.call(getattr, game, "properties", None)
        if isinstance(properties, Properties):
            self.properties = OwnedProperties(properties, owner)

    @property
    def served_name(self) -> str:
        """The name of the game's class."""
        return class_name(self._owned)

    @property
    def min_players(self) -> int:
        return int(self._owner.call(getattr, self._owned, "min_players"))

    join = _forwarded("join")
    leave = _forwarded("leave")
    action_spec = _forwarded("action_spec")
    observation_spec = _forwarded("observation_spec")
    reward_spec = _forwarded("reward_spec")
    configure = _forwarded("configure")
    reset = _forwarded("reset")
    step = _forwarded("step")
    timestep = _forwarded("timestep")

    def discount_spec(self, player: Player) -> Any:
        return self._owner.call(discount_spec_of, self._owned, player)

    def advance(
        self, actions: Mapping[Player, Any] | None, players: Sequence[Player]
    ) -> list[dm_env.TimeStep | None]:
        """In one call to the owner, take a step, or begin a sequence if `actions` is None.

        Args:
          actions: as of `Game.step`; empty to leave the game as it is; None to begin a sequence.
          players: the players whose TimeSteps are returned.

        Raises:
          RequestError: the game rejects an action as invalid. Other exceptions raised by the game
            are not converted.
        """
        return self._owner.call(_advance, self._owned, actions, players)

    def close(self) -> None:
        self._owner.call(self._close)


def _advance(
    game: Game, actions: Mapping[Player, Any] | None, players: Sequence[Player]
) -> list[dm_env.TimeStep | None]:
    # Reset, step and TimeSteps in one call of the owner: one change of threads for each step.
    if actions is None:
        game.reset()
    elif actions:
        try:
            game.step(actions)
        except ValueError as error:
            raise RequestError.invalid(str(error)) from error
    return [game.timestep(player) for player in players]


class OwnedProperties(Properties):
    """Properties whose values are read and written by the owner of an environment.

    Args:
      properties: the properties of the environment.
      owner: reads and writes them.
    """

    def __init__(self, properties: Properties, owner: Owner):
        super().__init__()
        self._owned = properties
        self._owner = owner

    read = _forwarded("read")
    write = _forwarded("write")
    list = _forwarded("list")
    knows = _forwarded("knows")
    _keys = _forwarded("_keys")
