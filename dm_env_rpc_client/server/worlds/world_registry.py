"""A registry of one process's worlds, and their share of the server's limited resources.

A world is idle if it has no agents and the stream that created it has ended. The client may never
return to destroy such a world, so a thread ends each world that stays idle for some time. This
thread runs only while a world is idle.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import any_pb2
from google.rpc import code_pb2

from dm_env_rpc_client.server.errors import ErrorLog, Report, RequestError, unreported
from dm_env_rpc_client.server.options import UNNAMED, ServeOptions
from dm_env_rpc_client.server.single_instance import Instance
from dm_env_rpc_client.server.worlds.making import ONLY_WORLD, Kind, hosting, pick
from dm_env_rpc_client.server.worlds.world import Agent, OwnedWorld, World
from dm_env_rpc_client.system import owner_threads
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.owner_threads import Call, MainOwner, Owner, OwnerGoneError
from dm_env_rpc_client.tensors.memory_limits import listed

_log = logging.getLogger(__name__)

_OVERHEAD = 256
"""Size, in bytes, of the Python objects that a setting needs besides its name and value."""


class Share:
    """The names of one process's worlds, and how much of the server's limits they use.

    The limited numbers are "worlds", including worlds in creation, "agents" and, for settings,
    "held_bytes".
    """

    def __init__(self) -> None:
        self._taken: collections.Counter[str] = collections.Counter()
        self._numbers = itertools.count(1)

    def add(self, name: str, count: int) -> None:
        """Add `count` to this process's share of the limit called `name`."""
        self._taken[name] += count

    def total(self, name: str) -> int:
        """Return the sum of all processes' shares of one limit."""
        return self._taken[name]

    def new_name(self) -> str:
        """Return a name for a new world in this process."""
        return f"world-{next(self._numbers)}"

    def forget(self, name: str) -> None:
        """Record that a world no longer exists."""

    def missing(self, name: str, known: Iterable[str]) -> str:
        """Return the error message for an unknown world.

        Args:
          name: the requested name.
          known: the names of this process's worlds.
        """
        names = list(known)
        worlds = listed(names) if names else "none; create one first"
        return f"no world {name!r}; worlds: {worlds}"


def held_bytes(name: str, value: Any) -> int:
    """Return the approximate memory used by a setting, in bytes."""
    size = _OVERHEAD + 4 * len(name)
    if isinstance(value, np.ndarray):
        elements = value.flat if value.dtype.kind == "O" else ()
        return size + value.nbytes + sum(_size(element) for element in elements)
    return size + _size(value)


def _size(value: Any) -> int:
    return value.ByteSize() if isinstance(value, any_pb2.Any) else sys.getsizeof(value)


_JOIN_SECONDS = 1.0

CLOSE_SECONDS = 0.5
"""The maximum time, in seconds, that a stopping server waits for a step in progress."""


@dataclasses.dataclass
class _Entry:
    """A world in the registry.

    Attributes:
      kind: the kind that made it; None if it existed before.
      creator: the session that created it, while its stream is open.
      held: the bytes of the settings of its creation and resets, by name.
      agents: the number of joined agents.
      due: the time at which it ends, on the monotonic clock, if it is idle.
    """

    kind: Kind | None = None
    creator: object | None = None
    held: dict[str, int] = dataclasses.field(default_factory=dict)
    agents: int = 0
    due: float | None = None
    world: World = dataclasses.field(init=False)


class WorldRegistry:
    """The thread-safe registry that creates, finds and destroys worlds.

    If there are several environments, the create setting "environment" selects one by name. If the
    only one is named `UNNAMED`, "environment" is passed to it like any other setting. If a world
    exists from the start, its name is empty, it is never destroyed, and no other worlds can be
    created.

    Args:
      options: the sources of worlds, and the limits of their number and life.
      error_log: collects exceptions of worlds that are closed without a request.
      share: counts the worlds against the limits, and names them.
      main: the owner of all worlds; None if they have owners of their own.
      report: receives exceptions raised by a batch's rows.

    Attributes:
      closes: what `close` waits for, in words.
    """

    def __init__(
        self,
        options: ServeOptions,
        error_log: ErrorLog,
        share: Share,
        main: MainOwner | None = None,
        report: Report = unreported,
    ):
        self._options = options
        self._main = main
        self._factories = options.factories()
        self._kinds = {
            name: Kind(each, options, main, report) for name, each in self._factories.items()
        }
        self._instances = [
            factory for factory in self._factories.values() if isinstance(factory, Instance)
        ]
        self._error_log = error_log
        self._share = share
        # Guards the fields below; notified when fewer worlds are idle.
        self._lock = make_lock()
        self._changed = threading.Condition(self._lock)
        self._entries: dict[str, _Entry] = {}
        self._idle_thread: threading.Thread | None = None
        self._is_closed = False
        self.closes = ""
        # Pending closes of idle worlds, which their owners execute. Only the idle thread changes
        # the list.
        self._closing: list[Call] = []
        if options.made is not None:
            self._entries[UNNAMED] = _Entry()
            with self._as_owner():
                self._entries[UNNAMED].world = hosting(options.made, options, main)

    def try_instances(self) -> None:
        """Create and close a world for each existing environment.

        Raises:
          Exception: as `Kind.make`.
        """
        with self._as_owner():
            for kind in (each for each in self._kinds.values() if each.is_instance):
                kind.make({}).close()

    def _as_owner(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this thread acts as the main owner, if there is one."""
        return contextlib.nullcontext() if self._main is None else self._main.lent_here()

    def abandon(self) -> None:
        """End the threads that own environments, but leave the environments open."""
        for instance in self._instances:
            instance.abandon()
        for entry in list(self._entries.values()):
            owner = _owner_of(entry.world)
            if owner is not None:
                owner.end()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def agent_count(self) -> int:
        """The number of agents in all worlds."""
        with self._lock:
            return sum(entry.agents for entry in self._entries.values())

    def create(self, settings: Mapping[str, Any], creator: object) -> str:
        """Create a world and return its name.

        Args:
          settings: values by name.
          creator: keeps the world alive, even without agents, until `creator_gone` is called.

        Raises:
          ElsewhereError: this thread is an owner, and the world should belong to another one.
        """
        settings = dict(settings)
        kind = pick(self._kinds, settings)
        kind.require_thread()
        entry = _Entry(kind, creator)
        with self._lock:
            # Announced to other processes before their worlds are counted: two of them cannot both
            # take the last place.
            self._share.add("worlds", 1)
        try:
            with self._lock:
                # Added first, then compared: two clients that want the last place at once may both
                # be refused, but the limit is never exceeded.
                if self._share.total("worlds") > self._options.max_worlds:
                    raise self._full()
                self._hold(entry, settings)
            # Without the lock: a constructor may take seconds, and other clients create and join
            # meanwhile.
            entry.world = kind.make(settings)
            with self._lock:
                if not self._is_closed:
                    name = self._share.new_name()
                    self._entries[name] = entry
                    _log.debug("world %r is created", name)
                    return name
            # `close` has run meanwhile and does not know this world.
            entry.world.close()
            raise RequestError.not_now("the server has stopped")
        except BaseException:
            with self._lock:
                self._give_back(entry)
            raise

    def _full(self) -> RequestError:
        text = f"the server has reached its limit of {self._options.max_worlds} worlds; destroy one"
        if self._options.singleton:
            known = ", ".join(map(repr, self._entries)) or "one that is being closed"
            text = (
                f"this server hosts one environment at a time (singleton), and the world that "
                f"uses it is {known}; destroy that world or end its client"
            )
        return RequestError(code_pb2.RESOURCE_EXHAUSTED, f"{text} first")

    def kind(self, name: str) -> Kind:
        """Return the `Kind` of the worlds created for the environment called `name`."""
        return self._kinds[name]

    def require_thread_to_create(self, settings: Mapping[str, Any]) -> None:
        """Check that this thread is allowed to create a world, as `create` does."""
        pick(self._kinds, dict(settings)).require_thread()

    def require_thread_of(self, name: str) -> None:
        """Check that this thread is allowed to use a world, as `join` does."""
        entry = self._entries.get(name)
        if entry is not None:
            _require_thread_of(entry.world)

    def creator_gone(self, creator: object) -> None:
        """Schedule the end of all worlds that `creator` has created and that have no agents."""
        with self._lock:
            for entry in (each for each in self._entries.values() if each.creator is creator):
                # Kept for `idle_world_seconds`: its client may reconnect and join again.
                entry.creator = None
                self._look_idle(entry)

    @contextlib.contextmanager
    def holding(self, name: str, settings: Mapping[str, Any]) -> Iterator[None]:
        """Return a context that counts a reset's settings, unless the reset fails.

        Args:
          name: the world.
          settings: the settings of the reset, which replace settings of the same names.

        Raises:
          RequestError: the settings of all worlds would take too much memory.
        """
        with self._lock:
            entry = self._find(name)
            # Counted before the reset, so that settings beyond the limit are refused before they
            # are applied.
            former = entry.held
            self._hold(entry, settings)
        try:
            yield
        except BaseException:
            with self._lock:
                # The world may have been destroyed, and another created, while the reset failed.
                if self._entries.get(name) is entry:
                    self._share.add("held_bytes", sum(former.values()) - sum(entry.held.values()))
                    entry.held = former
            raise

    def join(self, name: str, settings: Mapping[str, Any]) -> tuple[Agent, Owner | None]:
        """Join a world.

        Returns:
          A new agent, and the owner that must call it; None if threads without worlds call it.

        Raises:
          ElsewhereError: this thread is an owner, but not the world's.
        """
        with self._lock:
            entry = self._find(name)
            owner = _require_thread_of(entry.world)
            # Counted before it joins, so that the world is not destroyed in the meantime.
            entry.agents += 1
            self._share.add("agents", 1)
            entry.due = None
            self._changed.notify()
        try:
            if owner is None:
                return entry.world.join(settings), None
            # Joining may call the environment, so its owner does it.
            return owner.call(entry.world.join, settings), owner
        except OwnerGoneError as error:
            self.left(name)
            raise RequestError.not_now(f"world {name!r} was closed") from error
        except BaseException:
            self.left(name)
            raise

    def paced(self, name: str, is_slow: bool) -> None:
        """Record whether a world answers slowly."""
        entry = self._entries.get(name)
        if entry is not None and entry.kind is not None:
            entry.kind.is_slow = is_slow

    def get(self, name: str) -> World:
        """Return a world, or raise RequestError if no world has this name."""
        with self._lock:
            return self._find(name).world

    def left(self, name: str) -> None:
        """Record that one agent has left a world."""
        with self._lock:
            entry = self._entries.get(name)
            # The server may have been stopped, and its worlds closed, during a step.
            if entry is not None:
                entry.agents -= 1
                self._share.add("agents", -1)
                self._look_idle(entry)

    def reset(self, name: str, settings: Mapping[str, Any], caller: Agent | None) -> None:
        """Reset a world; see `World.reset`.

        Raises:
          ElsewhereError: this thread is an owner, and may have to wait.
        """
        # A reset waits for the step that reports it to the agent; an owner that waited could not
        # take that step.
        owner_threads.require_no_owner()
        with self.holding(name, settings):
            self.get(name).reset(settings, caller)

    def destroy(self, name: str) -> None:
        """Destroy a world that has no agents.

        Raises:
          ElsewhereError: as `join`.
        """
        with self._lock:
            entry = self._find(name)
            _require_thread_of(entry.world)
            # Nothing could create the world again.
            if not self._factories:
                raise RequestError.not_now(ONLY_WORLD)
            if entry.agents:
                raise RequestError.not_now(
                    f"world {name!r} has {entry.agents} agent(s), which must leave first"
                )
            # Removed before it is closed, so that no client joins a world that is being closed.
            self._remove(name)
            self._changed.notify()
        _log.debug("world %r is destroyed", name)
        entry.world.close()

    def close(self) -> bool:
        """Close all worlds and existing environments after the server has stopped.

        Returns:
          Whether all were closed without an error.
        """
        with self._lock:
            self._is_closed = True
            thread = self._idle_thread
            # Removed together, under the lock, so that no world is joined while others are closed.
            removed = [(name, self._remove(name)) for name in list(self._entries)]
            self._changed.notify()
        are_closed = []
        # Owners whose step does not end; their other worlds are not waited for.
        stuck: set[Owner | None] = set()
        for name, world in removed:
            self.closes = f"world {name!r} to close; it may be in a step"
            owner = _owner_of(world)
            is_closed = self._close(name, world, 0.0 if owner in stuck else CLOSE_SECONDS)
            are_closed.append(is_closed)
            if not is_closed and owner is not None:
                stuck.add(owner)
        are_closed += [self._close_instance(each) for each in self._instances]
        if thread is not None:
            # It may be closing an idle world.
            thread.join(_JOIN_SECONDS)
        for call in self._closing:
            are_closed.append(call.wait_begun(CLOSE_SECONDS) and call.result())
        return all(are_closed)

    def _remove(self, name: str) -> World:
        """Forget a world, which the caller must close. The caller must hold the lock."""
        entry = self._entries.pop(name)
        self._share.forget(name)
        self._give_back(entry)
        return entry.world

    def _give_back(self, entry: _Entry) -> None:
        self._share.add("worlds", -1)
        self._share.add("agents", -entry.agents)
        self._share.add("held_bytes", -sum(entry.held.values()))

    def _close(self, name: str, world: World, seconds: float | None = None) -> bool:
        try:
            if isinstance(world, OwnedWorld):
                world.close(seconds)
            else:
                world.close()
        except Exception as error:
            self._error_log.add(error, f"closing the world {name!r} failed")
            return False
        return True

    def _close_instance(self, instance: Instance) -> bool:
        try:
            return instance.close()
        except Exception as error:
            self._error_log.add(error, "closing the environment failed")
            return False

    def _look_idle(self, entry: _Entry) -> None:
        seconds = self._options.idle_world_seconds
        if seconds is None or entry.agents or entry.creator is not None or not self._factories:
            return
        entry.due = time.monotonic() + seconds
        # Started with the first idle world, and ended with the last: most servers never need it.
        if self._idle_thread is None:
            thread = threading.Thread(
                target=self._end_idle, name="dm_env_rpc idle worlds", daemon=True
            )
            # No thread can start at a thread limit or at exit; the next idle world tries again.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._idle_thread = thread

    def _end_idle(self) -> None:
        while True:
            with self._lock:
                name = self._wait_idle()
                if name is None:
                    self._idle_thread = None
                    return
                world = self._remove(name)
            _log.info("world %r is destroyed: it has no agents, and its creator is gone", name)
            if isinstance(world, OwnedWorld) and world.answers:
                # Not awaited: the owner may be in a long step, and other idle worlds are due.
                with contextlib.suppress(OwnerGoneError):
                    closing = world.owner.begin(self._close, name, world)
                    self._closing = [call for call in self._closing if not call.is_over()]
                    self._closing.append(closing)
            else:
                self._close(name, world)

    def _wait_idle(self) -> str | None:
        """Wait for the first idle world to expire and return its name, or None if none is idle."""
        while True:
            idle = [
                (each.due, name) for name, each in self._entries.items() if each.due is not None
            ]
            if not idle:
                return None
            due, name = min(idle)
            remaining = due - time.monotonic()
            if remaining <= 0:
                return name
            # The lock is released meanwhile; `join`, `destroy` and `close` notify.
            self._changed.wait(min(remaining, threading.TIMEOUT_MAX))

    def _hold(self, entry: _Entry, settings: Mapping[str, Any]) -> None:
        """Count the memory that a world's settings use."""
        sizes = {**entry.held, **{key: held_bytes(key, each) for key, each in settings.items()}}
        own, more = sum(sizes.values()), sum(sizes.values()) - sum(entry.held.values())
        self._share.add("held_bytes", more)
        # The message names both parts: a client can only shorten its own settings.
        others, limit = self._share.total("held_bytes") - own, self._options.limits.held_bytes
        if others + own > limit:
            self._share.add("held_bytes", -more)
            raise RequestError(
                code_pb2.RESOURCE_EXHAUSTED,
                f"the settings take {own} bytes and other worlds' settings take {others} bytes, "
                f"but the server holds at most {limit} bytes of settings (Limits.held_bytes); "
                "destroy a world first",
            )
        entry.held = sizes

    def _find(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise RequestError(code_pb2.NOT_FOUND, self._share.missing(name, self._entries))
        return entry


def _owner_of(world: World) -> Owner | None:
    return world.owner if isinstance(world, OwnedWorld) else None


def _require_thread_of(world: World) -> Owner | None:
    """Check that this thread may use a world, and return the owner that must call its agents.

    Raises:
      ElsewhereError: this thread is another owner.
    """
    owner = world.owner if isinstance(world, OwnedWorld) and world.answers else None
    if owner is None or not owner.is_here:
        owner_threads.require_no_owner()
    return owner
