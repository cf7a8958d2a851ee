"""The worlds of all workers by name, and each worker's share of the server's limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from dm_env_rpc_client.server.worlds.world_registry import Share
from dm_env_rpc_client.system.locks import make_lock

_MOST_LOST = 1024
"""Maximum number of remembered worlds that were lost with their workers. Only their names are
kept, and the oldest ones are dropped."""


class WorkerShare(Share):
    """The share of the server's limits that the worlds of one worker use.

    Args:
      registry: the registry of the server.

    Attributes:
      placed: the number of worlds and parts of batches in the worker, including planned ones.
    """

    def __init__(self, registry: Registry):
        super().__init__()
        self.placed = 0
        self._registry = registry

    def own(self, name: str) -> int:
        """Return how much of a limit the worlds of this worker use."""
        return self._taken[name]

    def total(self, name: str) -> int:
        return self._registry.total(name)

    def new_name(self) -> str:
        return self._registry.named(self)

    def forget(self, name: str) -> None:
        self._registry.forget(name)

    def missing(self, name: str, known: Iterable[str]) -> str:
        if self._registry.is_lost(name):
            return f"no world {name!r}: its process has ended; create another"
        return super().missing(name, self._registry.names())


class Registry:
    """The thread-safe registry of the worlds of all workers."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._numbers = itertools.count(1)
        self._shares: list[WorkerShare] = []
        self._worlds: dict[str, WorkerShare] = {}
        self._lost: dict[str, None] = {}

    def new_share(self) -> WorkerShare:
        """Return the share for a new worker."""
        share = WorkerShare(self)
        with self._lock:
            self._shares.append(share)
        return share

    def place(self, among: Sequence[WorkerShare]) -> WorkerShare | None:
        """Choose the worker with the fewest worlds for a new world, and count that world.

        Args:
          among: the shares of the candidates.

        Returns:
          One of the shares, or None if there are none.
        """
        with self._lock:
            # Worlds in creation are counted as well: many clients at once would otherwise all
            # choose the same worker.
            chosen = min(among, key=lambda share: share.placed, default=None)
            if chosen is not None:
                chosen.placed += 1
            return chosen

    def was_not_created(self, share: WorkerShare) -> None:
        """Record that a world was not created in the worker chosen for it."""
        with self._lock:
            share.placed -= 1

    def named(self, share: WorkerShare) -> str:
        """Return a name for a new world in a worker."""
        with self._lock:
            # Numbers are never reused: a client of a lost world must not reach another one by its
            # name.
            name = f"world-{next(self._numbers)}"
            # The worker may have ended during its request; its world is lost already.
            if share in self._shares:
                self._worlds[name] = share
            return name

    def forget(self, name: str) -> None:
        """Forget a world that no longer exists."""
        with self._lock:
            share = self._worlds.pop(name, None)
            if share is not None:
                share.placed -= 1

    def of(self, name: str) -> WorkerShare | None:
        """Return the share of the worker that hosts a world, or None if there is no such world."""
        return self._worlds.get(name)

    def names(self) -> list[str]:
        """Return the names of all worlds."""
        with self._lock:
            return list(self._worlds)

    def is_lost(self, name: str) -> bool:
        """Return whether a world with this name was lost when its worker ended."""
        return name in self._lost

    def total(self, name: str) -> int:
        """Return the total that the worlds of all workers count towards a limit."""
        with self._lock:
            return sum(share.own(name) for share in self._shares)

    def lose(self, share: WorkerShare) -> None:
        """Forget an ended worker and all of its worlds. A second call does nothing."""
        with self._lock:
            if share not in self._shares:
                return
            self._shares.remove(share)
            for name in [name for name, one in self._worlds.items() if one is share]:
                del self._worlds[name]
                self._lost[name] = None
            # Names are kept for a clear error only, and a long-lived server must not grow.
            for name in list(self._lost)[:-_MOST_LOST]:
                del self._lost[name]
