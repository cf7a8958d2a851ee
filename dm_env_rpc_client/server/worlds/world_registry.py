"""The worlds of one server, by name.

A world that has no agents, and whose creator's stream has ended, is idle: nobody may ever come back
to destroy it. `IdleWorlds` ends it after some time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import any_pb2
from google.rpc import code_pb2

from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.server.worlds.idle_worlds import IdleWorlds
from dm_env_rpc_client.server.worlds.world import Agent, World
from dm_env_rpc_client.tensors.limits import DEFAULT, listed

__all__ = ["ENVIRONMENT", "UNNAMED", "Share", "WorldRegistry"]

_log = logging.getLogger(__name__)

ENVIRONMENT = "environment"
"""The create setting that selects one of several environments."""

UNNAMED = ""

_OVERHEAD = 256
"""Bytes of the Python objects of a setting beside its name and its value."""

ONLY_WORLD = (
    "this server has one world, with the empty name; join it, it can be neither created nor "
    "destroyed"
)

WorldFactory = Callable[[Mapping[str, Any]], World]


class Share:
    """What the worlds of one process take of the limits of a server that may have several.

    Attributes:
      worlds: worlds, and those that are being made.
      agents: agents that are joined to them.
      held_bytes: the memory for their settings.
    """

    worlds: int = 0
    agents: int = 0
    held_bytes: int = 0

    @property
    def other_worlds(self) -> int:
        """Worlds of the other processes."""
        return 0

    @property
    def other_held_bytes(self) -> int:
        """The memory for their settings."""
        return 0


class WorldRegistry:
    """Creates, finds and destroys worlds. Thread-safe.

    Args:
      factories: functions by name that make a world from settings. The setting
        "environment" selects one by name; it may be left out if there is only one. If the
        only one is named `UNNAMED`, "environment" is passed to it like any other setting.
      limit: the maximum number of worlds at the same time.
      error_log: takes the exceptions of worlds that are closed for nobody.
      only: a world that exists from the start under the empty name. No other worlds can be
        created then, and it is never destroyed.
      held_bytes: the memory that the settings of all worlds may take together.
      idle_seconds: after how long a world is destroyed that has no agents and whose creator is
        gone; None for never.
      share: told what the worlds take; None for a server of one process.
      prefix: what the names of worlds begin with.
    """

    def __init__(
        self,
        factories: Mapping[str, WorldFactory],
        limit: int,
        error_log: ErrorLog,
        only: World | None = None,
        held_bytes: int = DEFAULT.held_bytes,
        idle_seconds: float | None = None,
        share: Share | None = None,
        prefix: str = "world-",
    ):
        self._factories = factories
        self._share = share or Share()
        self._prefix = prefix
        self._limit = limit
        self._error_log = error_log
        self._lock = threading.Lock()
        self._idle = IdleWorlds(idle_seconds, self._lock, self._remove, self._close_idle)
        self._numbers = itertools.count(1)
        self._worlds: dict[str, World] = {} if only is None else {"": only}
        self._agents: dict[str, int] = dict.fromkeys(self._worlds, 0)
        # Who created each world, for as long as its stream is open.
        self._creators: dict[str, object] = {}
        self._is_closed = False
        self._being_made = 0
        self._max_held = held_bytes
        # The bytes of the settings that each world was made or reset with. A world that is being
        # made is counted under a name of its own.
        self._held: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._worlds)

    @property
    def agent_count(self) -> int:
        """The number of agents in all worlds."""
        return sum(self._agents.values())

    def create(self, settings: Mapping[str, Any], creator: object) -> str:
        """Creates a world and returns its name.

        Args:
          settings: values by name.
          creator: who keeps the world, also without agents, until `creator_gone`.
        """
        settings = dict(settings)
        factory = self._pick(settings)
        with self._lock:
            # Told to other processes before theirs are looked at: two that create a world at the
            # same time do not both take the last place.
            self._being_made += 1
            self._count_worlds()
            try:
                if self._share.worlds + self._share.other_worlds > self._limit:
                    raise RequestError(
                        code_pb2.RESOURCE_EXHAUSTED,
                        f"the server has reached its limit of {self._limit} worlds; destroy one "
                        "first",
                    )
                name = f"{self._prefix}{next(self._numbers)}"
                self._hold(name, settings)
            except BaseException:
                self._being_made -= 1
                self._count_worlds()
                raise
        try:
            world = factory(settings)
        except BaseException:
            with self._lock:
                self._let_go(name)
                self._being_made -= 1
                self._count_worlds()
            raise
        with self._lock:
            self._being_made -= 1
            if not self._is_closed:
                self._worlds[name] = world
                self._agents[name] = 0
                self._creators[name] = creator
                _log.debug("world %r is created", name)
                return name
            self._count_worlds()
        world.close()
        raise RequestError.not_now("the server has stopped")

    def creator_gone(self, creator: object) -> None:
        """Ends, after a while, the worlds without agents that `creator` has created."""
        with self._lock:
            for name in [name for name, each in self._creators.items() if each is creator]:
                del self._creators[name]
                self._look_idle(name)

    @contextlib.contextmanager
    def holding(self, name: str, settings: Mapping[str, Any]) -> Iterator[None]:
        """Counts settings with which a world is reset; undone if the reset fails.

        Args:
          name: the world.
          settings: those of the reset, which replace those of the same names.

        Raises:
          RequestError: the settings of all worlds would take too much memory.
        """
        with self._lock:
            former = self._hold(name, settings)
        try:
            yield
        except BaseException:
            with self._lock:
                if name in self._held:
                    self._let_go(name)
                    self._held[name] = former
                    self._share.held_bytes += sum(former.values())
            raise

    def join(self, name: str, settings: Mapping[str, Any]) -> Agent:
        """Returns a new agent of a world."""
        with self._lock:
            world = self._find(name)
            # Counted before it joins, so that the world is not destroyed in the meantime.
            self._agents[name] += 1
            self._share.agents += 1
            self._idle.cancel(name)
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
                self._share.agents -= 1
                self._look_idle(name)

    def reset(self, name: str, settings: Mapping[str, Any], caller: Agent | None) -> None:
        """Resets a world; see `World.reset`."""
        world = self.get(name)
        with self.holding(name, settings):
            world.reset(settings, caller)

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
            self._idle.cancel(name)
            self._remove(name)
        _log.debug("world %r is destroyed", name)
        world.close()

    def close(self) -> bool:
        """Closes all worlds, when the server has stopped; returns whether none failed to close."""
        with self._lock:
            self._is_closed = True
            worlds = list(self._worlds.items())
            self._worlds.clear()
            self._agents.clear()
            self._creators.clear()
            self._held.clear()
            self._share.agents = self._share.held_bytes = 0
            self._count_worlds()
            self._idle.clear()
        are_closed = [self._close(name, world) for name, world in worlds]
        self._idle.join()
        return all(are_closed)

    def _look_idle(self, name: str) -> None:
        if self._factories and not self._agents[name] and name not in self._creators:
            self._idle.begin(name)

    def _remove(self, name: str) -> World:
        """Forgets a world, which the caller closes; called with the lock."""
        del self._agents[name]
        self._creators.pop(name, None)
        self._let_go(name)
        world = self._worlds.pop(name)
        self._count_worlds()
        return world

    def _count_worlds(self) -> None:
        self._share.worlds = len(self._worlds) + self._being_made

    def _let_go(self, name: str) -> None:
        """Forgets the settings of a world; they are gone already if the server has stopped."""
        self._share.held_bytes -= sum(self._held.pop(name, {}).values())

    def _close_idle(self, name: str, world: World) -> None:
        _log.info("world %r is destroyed: it has no agents, and its creator is gone", name)
        self._close(name, world)

    def _close(self, name: str, world: World) -> bool:
        try:
            world.close()
        except Exception as error:
            self._error_log.add(error, f"closing the world {name!r} failed")
            return False
        return True

    def _hold(self, name: str, settings: Mapping[str, Any]) -> dict[str, int]:
        """Counts settings of a world; returns its counts before."""
        former = self._held.get(name, {})
        sizes = {**former, **{key: held_bytes(key, value) for key, value in settings.items()}}
        share, more = self._share, sum(sizes.values()) - sum(former.values())
        share.held_bytes += more
        others = share.held_bytes + share.other_held_bytes - sum(sizes.values())
        if others + sum(sizes.values()) > self._max_held:
            share.held_bytes -= more
            raise RequestError(
                code_pb2.RESOURCE_EXHAUSTED,
                f"the settings take {sum(sizes.values())} bytes, those of other worlds {others}; "
                f"the server holds {self._max_held} (Limits.held_bytes); destroy a world first",
            )
        self._held[name] = sizes
        return former

    def _find(self, name: str) -> World:
        world = self._worlds.get(name)
        if world is None:
            known = listed(self._worlds) if self._worlds else "none; create one first"
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


def held_bytes(name: str, value: Any) -> int:
    """Returns about how much memory a setting takes."""
    size = _OVERHEAD + 4 * len(name)
    if isinstance(value, np.ndarray):
        size += value.nbytes
        if value.dtype.kind == "O":
            size += sum(_size(element) for element in value.flat)
        return size
    return size + _size(value)


def _size(value: Any) -> int:
    return value.ByteSize() if isinstance(value, any_pb2.Any) else sys.getsizeof(value)
