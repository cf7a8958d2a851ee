"""`Game`: a simulation for several players, without connections or threads.

Environment authors implement `Game`. A `SharedWorld` runs it for the agents that join and leave
over the network, and never calls it from two threads at once.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

import dm_env

Player = Hashable


class Game(abc.ABC):
    """One simulation for several players that act together.

    Each player has its own actions and observations, which are structures as in dm_env,
    nested or not. All players share one sequence, which begins for all of them at the same time.
    It may end for some players before the others; these wait for the next one.

    A game may have an attribute `properties`, a `Properties`, for the clients that are joined.
    """

    is_lock_step: bool = True
    """True: a step is taken when all players have acted. False: each time a player acts."""

    default_actions: Mapping[str, Any] = MappingProxyType({})
    """Values, by flat name, for actions that a player leaves out; without one it is an error."""

    @property
    @abc.abstractmethod
    def min_players(self) -> int:
        """The number of players that a sequence needs.

        With fewer players no sequence begins, and a running one is interrupted, unless the player
        that left had received its LAST step.
        """

    @abc.abstractmethod
    def join(self, settings: Mapping[str, Any]) -> Player:
        """Adds a player, possibly in the middle of a sequence.

        Args:
          settings: the settings of the agent's JoinWorld, values by flat name.

        Returns:
          A key that identifies the player in the calls of the other methods.

        Raises:
          ValueError: the game is full, or a setting is invalid. The agent gets its text.
        """

    @abc.abstractmethod
    def leave(self, player: Player) -> None:
        """Removes a player. Called when its agent leaves and when its client disconnects."""

    @abc.abstractmethod
    def action_spec(self, player: Player) -> Any:
        """The specs of a player's actions, as `dm_env.Environment.action_spec`."""

    @abc.abstractmethod
    def observation_spec(self, player: Player) -> Any:
        """The specs of a player's observations."""

    def reward_spec(self, player: Player) -> Any:
        """The spec of a player's reward; dm_env's default."""
        return dm_env.Environment.reward_spec(self)

    def discount_spec(self, player: Player) -> Any:
        """The spec of a player's discount; dm_env's default."""
        return dm_env.Environment.discount_spec(self)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Applies the settings of a ResetWorld from the next sequence on.

        Args:
          settings: values by flat name.

        Raises:
          ValueError: a setting is unknown or invalid. The game must be unchanged then.
        """
        if settings:
            raise ValueError(f"unknown setting {next(iter(settings))!r}; this game has no settings")

    @abc.abstractmethod
    def reset(self) -> None:
        """Begins a sequence with the current players."""

    @abc.abstractmethod
    def step(self, actions: Mapping[Player, Any]) -> None:
        """Advances the sequence.

        Args:
          actions: actions by player. In lock-step they include every player that has
            received a step of this sequence and not its LAST one, but neither players that have
            just joined nor those that have reset their own sequence. Otherwise they are those of
            one player.

        Raises:
          ValueError: an action is invalid. The game must be unchanged then.
        """

    @abc.abstractmethod
    def timestep(self, player: Player) -> dm_env.TimeStep | None:
        """Returns a player's TimeStep of the last `reset` or `step`.

        Args:
          player: a player that has joined and has not left.

        Returns:
          The TimeStep, which conforms to the player's specs. After a LAST one the player takes no
          part in the sequence, and nobody waits for it; the sequence is over when no player takes
          part. None, or another LAST one, for a player that takes no part, or not yet. For a
          player that joined in the middle of a sequence, the server replaces type, reward and
          discount by those of a FIRST step.
        """

    def close(self) -> None:  # noqa: B027  # most games have none
        """Frees the resources of the game."""
