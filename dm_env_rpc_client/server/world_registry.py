"""The worlds of one server, by name."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from google.rpc import code_pb2

from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.server.world import Agent, World

__all__ = ["ENVIRONMENT", "WorldRegistry"]

_log = logging.getLogger(__name__)

ENVIRONMENT = "environment"
"""The create setting that selects one of several environments."""

UNNAMED = ""

ONLY_WORLD = (
    "this server has one world, with the empty name; join it, it can be neither created nor "
    "destroyed"
)

WorldFactory = Callable[[Mapping[str, Any]], World]


class WorldRegistry:
    """Creates, finds and destroys worlds. Thread-safe.

    Args:
      factories: functions by name that make a world from settings. The setting
        "environment" selects one by name; it may be left out if there is only one. If the
        only one is named `UNNAMED`, "environment" is passed to it like any other setting.
      limit: the maximum number of worlds at the same time.
      only: a world that exists from the start under the empty name. No other worlds can be
        created then.
    """

    def __init__(
        self, factories: Mapping[str, WorldFactory], limit: int, only: World | None = None
    ):
        self._factories = factories
        self._limit = limit
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._worlds: dict[str, World] = {} if only is None else {"": only}
        self._agents: dict[str, int] = dict.fromkeys(self._worlds, 0)
        self._being_made = 0

    def __len__(self) -> int:
        return len(self._worlds)

    @property
    def agent_count(self) -> int:
        """The number of agents in all worlds."""
        return sum(self._agents.values())

    def create(self, settings: Mapping[str, Any]) -> str:
        """Creates a world and returns its name."""
        settings = dict(settings)
        factory = self._pick(settings)
        with self._lock:
            if len(self._worlds) + self._being_made >= self._limit:
                raise RequestError(
                    code_pb2.RESOURCE_EXHAUSTED,
                    f"the server has reached its limit of {self._limit} worlds; destroy one first",
                )
            self._being_made += 1
        try:
            world = factory(settings)
            with self._lock:
                name = f"world-{next(self._numbers)}"
                self._worlds[name] = world
                self._agents[name] = 0
        finally:
            with self._lock:
                self._being_made -= 1
        return name

    def join(self, name: str, settings: Mapping[str, Any]) -> Agent:
        """Returns a new agent of a world."""
        with self._lock:
            world = self._find(name)
            # Counted before it joins, so that the world is not destroyed in the meantime.
            self._agents[name] += 1
        try:
            return world.join(settings)
        except BaseException:
            self.left(name)
            raise

    def get(self, name: str) -> World:
        """Returns a world; RequestError if no world has this name."""
        with self._lock:
            return self._find(name)

    def left(self, name: str) -> None:
        """Counts one agent of a world less."""
        with self._lock:
            # The server may have been stopped, and its worlds closed, during a step.
            if name in self._agents:
                self._agents[name] -= 1

    def reset(self, name: str, settings: Mapping[str, Any], caller: Agent | None) -> None:
        """Resets a world; see `World.reset`."""
        self.get(name).reset(settings, caller)

    def destroy(self, name: str) -> None:
        """Destroys a world that has no agents."""
        with self._lock:
            world = self._find(name)
            if not self._factories:
                raise RequestError.not_now(ONLY_WORLD)
            if self._agents[name]:
                raise RequestError.not_now(
                    f"world {name!r} has {self._agents[name]} agent(s), which must leave first"
                )
            del self._worlds[name], self._agents[name]
        world.close()

    def close(self) -> None:
        """Closes all worlds; called when the server has stopped."""
        with self._lock:
            worlds = list(self._worlds.values())
            self._worlds.clear()
            self._agents.clear()
        for world in worlds:
            try:
                world.close()
            except Exception:
                _log.exception("closing a world failed")

    def _find(self, name: str) -> World:
        world = self._worlds.get(name)
        if world is None:
            known = ", ".join(map(repr, self._worlds)) or "none; create one first"
            raise RequestError(code_pb2.NOT_FOUND, f"no world {name!r}; worlds: {known}")
        return world

    def _pick(self, settings: dict[str, Any]) -> WorldFactory:
        if not self._factories:
            raise RequestError.not_now(ONLY_WORLD)
        if len(self._factories) == 1 and (
            UNNAMED in self._factories or ENVIRONMENT not in settings
        ):
            return next(iter(self._factories.values()))
        names = ", ".join(map(repr, self._factories))
        name = settings.pop(ENVIRONMENT, None)
        if not isinstance(name, str) or name not in self._factories:
            raise RequestError.invalid(
                f"the setting {ENVIRONMENT!r} selects what to create, got {name!r}; expected one "
                f"of: {names}"
            )
        return self._factories[name]
