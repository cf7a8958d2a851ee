"""What several agents do in one world, without a thought of connections or threads.

A `Game` is written by an environment author; a `SharedWorld` runs it for the agents that
join and leave over the network, and never calls it from two threads at once.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Mapping
from typing import Any

import dm_env

__all__ = ["Game"]

Player = Hashable


class Game(abc.ABC):
    """One simulation for several players, who act together.

    Actions and observations are structures as in dm_env, nested or not, for each player
    its own. All players share the sequence: it begins for all and ends for all.
    """

    is_lock_step: bool = True
    """Whether a step is taken when all players have acted, or for each when it acts."""

    @property
    @abc.abstractmethod
    def min_players(self) -> int:
        """How many players a sequence needs. With fewer it waits, or is interrupted."""

    @abc.abstractmethod
    def join(self, settings: Mapping[str, Any]) -> Player:
        """Lets a player in; in the middle of a sequence too.

        Args:
          settings: the agent's own, values by flat name.

        Returns:
          What the game knows the player by.

        Raises:
          ValueError: there is no place, or the settings are wrong; says why.
        """

    @abc.abstractmethod
    def leave(self, player: Player) -> None:
        """Takes note that a player has left, or vanished."""

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
          ValueError: there is no such setting, or a value is wrong. Nothing has changed.
        """
        if settings:
            raise ValueError(f"unknown setting {next(iter(settings))!r}; there are none")

    @abc.abstractmethod
    def reset(self) -> None:
        """Begins a sequence with the players that are in."""

    @abc.abstractmethod
    def step(self, actions: Mapping[Player, Any]) -> None:
        """Advances the sequence.

        Args:
          actions: what the players do. Everybody who is in and has seen a step of this
            sequence is here; who has just joined is not.

        Raises:
          ValueError: an action cannot be taken. Nothing has changed.
        """

    @abc.abstractmethod
    def timestep(self, player: Player) -> dm_env.TimeStep:
        """What a player gets of the last `reset` or `step`.

        LAST for one is LAST for all; each may have a discount of its own.

        Args:
          player: who joined and has not left.

        Returns:
          The TimeStep, which conforms to the player's specs. For a player who joined in the
          middle the type, reward and discount are made those of a FIRST step.
        """

    def close(self) -> None:  # noqa: B027  # most games hold nothing
        """Frees what the game holds."""
