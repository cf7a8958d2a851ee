"""Race, a game in which several players run along lanes and the first to reach the end wins."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client.server.worlds.world import Game


class Race(Game):
    """A small example game for several agents, for tutorials and tests.

    Every player starts at position 0 and moves by 0 or 1 in each step. The first player at
    the end gets reward 1 (players that reach it in the same step share it), all others get
    -1, and the sequence terminates.

    Actions: `{"move": int32 scalar}`, 0 or 1; 0 if a step omits it. Observations:
    `{"lane": int32 scalar}`, the player's own index in `{"positions": int32 [players]}`, which
    is -1 for a lane without a player; `{"turn": int32 scalar}`, the number of steps since the
    start. Join setting: `lane`, the index of a free lane; the lowest one if not given.

    Args:
      players: the number of players, at least 2.
      length: the position of the end, at least 1.
    """

    default_actions: Mapping[str, Any] = MappingProxyType({"move": 0})

    def __init__(self, players: int = 2, length: int = 5):
        if players < 2 or length < 1:
            raise ValueError(
                f"a race needs at least 2 players and a length of at least 1, got {players=}, "
                f"{length=}"
            )
        self._players = players
        self._length = self._longest = length
        self._runners: set[int] = set()
        self._turn = 0
        self._positions = np.full(players, -1, np.int32)
        self._rewards: dict[int, float] | None = None

    @property
    def min_players(self) -> int:
        """The number of players, all of whom must join before a race begins."""
        return self._players

    def join(self, settings: Mapping[str, Any]) -> int:
        """Assign a lane to a player."""
        unknown = set(settings) - {"lane"}
        if unknown:
            raise ValueError(f"unknown join setting {min(unknown)!r}; valid settings: lane")
        free = sorted(set(range(self._players)) - self._runners)
        lane = settings.get("lane", free[0] if free else None)
        if lane not in free:
            raise ValueError(f"lane {lane!r} is not free; free lanes: {free or 'none'}")
        self._runners.add(lane)
        return int(lane)

    def leave(self, player: Hashable) -> None:
        """Free the lane of a player."""
        lane = self._lane(player)
        self._runners.discard(lane)
        self._positions[lane] = -1

    def action_spec(self, player: Hashable) -> dict[str, specs.Array]:
        """Return the spec of a player's action; see the class docstring."""
        return {"move": specs.DiscreteArray(2, np.int32, "move")}

    def observation_spec(self, player: Hashable) -> dict[str, specs.Array]:
        """Return the specs of a player's observations; see the class docstring."""
        bounded = specs.BoundedArray((self._players,), np.int32, -1, self._length, "positions")
        return {
            "lane": specs.DiscreteArray(self._players, np.int32, "lane"),
            "positions": bounded,
            "turn": specs.Array((), np.int32, "turn"),
        }

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Set `length` to at most its initial value; a larger value would change the specs."""
        length = settings.get("length", self._length)
        if set(settings) - {"length"} or not 1 <= length <= self._longest:
            raise ValueError(
                f"the only setting that an existing race accepts is length, from 1 to "
                f"{self._longest}; got {dict(settings)}"
            )
        self._length = int(length)

    def reset(self) -> None:
        """Move all players to the start."""
        self._turn = 0
        self._rewards = None
        self._positions[:] = -1
        self._positions[sorted(self._runners)] = 0

    def step(self, actions: Mapping[Hashable, Any]) -> None:
        """Move the players according to their actions."""
        self._turn += 1
        for player, action in actions.items():
            self._positions[self._lane(player)] += int(action["move"])
        winners = set(np.flatnonzero(self._positions >= self._length).tolist())
        if winners:
            self._rewards = {
                lane: 1.0 / len(winners) if lane in winners else -1.0 for lane in self._runners
            }

    def timestep(self, player: Hashable) -> dm_env.TimeStep:
        lane = self._lane(player)
        observation = {
            "lane": np.int32(lane),
            "positions": self._positions.copy(),
            "turn": np.int32(self._turn),
        }
        if self._turn == 0:
            return dm_env.restart(observation)
        if self._rewards is not None:
            return dm_env.termination(self._rewards.get(lane, 0.0), observation)
        return dm_env.transition(0.0, observation)

    @staticmethod
    def _lane(player: Hashable) -> int:
        assert isinstance(player, int)
        return player
