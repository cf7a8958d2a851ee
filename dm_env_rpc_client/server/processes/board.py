"""What the processes of a server see of one another: a few numbers of each, in shared memory.

Each worker writes its own numbers only, and nobody waits for a lock that a killed worker might
hold. The server's own process clears those of a worker that has ended, but for what it has counted:
the one that replaces it goes on counting there.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

from dm_env_rpc_client.server.activity import COUNTED
from dm_env_rpc_client.server.worlds.world_registry import Share

__all__ = ["Board", "Slot"]

_FIELDS = (
    "serial",  # Which worker it is; 0 for none, or for one that does not serve yet.
    "streams",  # Streams of clients that are open.
    "fresh",  # Those of them that have neither created nor joined a world.
    "worlds",  # Worlds, and those that are being made.
    "agents",  # Agents that are joined to them.
    "held_bytes",  # The memory for their settings.
    "opened",  # Streams that were ever opened.
    "adopted",  # Connections that were ever taken.
    # The server's own process writes these.
    "is_stopped",  # Whether a signal has stopped it.
    "handed",  # Connections that were handed to it.
    "handed_at",  # When the last was, in nanoseconds of the monotonic clock.
    "waits_since",  # When one was handed to it, and none has been taken after that.
    "taken_before",  # What `adopted` was then.
    "expected",  # What `opened` will be when each has opened a stream.
)

_EXPECTED_NANOSECONDS = 1_000_000_000
"""For how long a connection that was handed over is expected to open a stream."""

_OFFSETS = {name: offset for offset, name in enumerate(_FIELDS)}


class Board:
    """The numbers of all workers. It can be given to processes that are started.

    Args:
      size: the number of workers.
    """

    def __init__(self, size: int):
        context = multiprocessing.get_context("spawn")
        self._numbers: Any = context.RawArray("q", size * len(_FIELDS))
        self._counted: Any = context.RawArray("q", size * len(COUNTED))
        self.size = size

    def counted(self, index: int) -> memoryview[int]:
        """Returns what the workers at one place have counted since the start, by `COUNTED`."""
        first = index * len(COUNTED)
        return memoryview(self._counted).cast("B").cast("q")[first : first + len(COUNTED)]

    def get(self, index: int, name: str) -> int:
        """Returns a number of one worker."""
        number: int = self._numbers[index * len(_FIELDS) + _OFFSETS[name]]
        return number

    def set(self, index: int, name: str, value: int) -> None:
        """Sets a number of one worker."""
        self._numbers[index * len(_FIELDS) + _OFFSETS[name]] = value

    def total(self, name: str) -> int:
        """Returns the sum over all workers."""
        return sum(self.get(index, name) for index in range(self.size))

    def load(self, index: int) -> int:
        """Returns the worlds that a worker has, and will probably have soon."""
        load = self.get(index, "worlds") + self.get(index, "fresh")
        if time.monotonic_ns() - self.get(index, "handed_at") < _EXPECTED_NANOSECONDS:
            load += max(0, self.get(index, "expected") - self.get(index, "opened"))
        return load

    def handed(self, index: int) -> None:
        """Counts a connection that is handed to a worker."""
        now, opened = time.monotonic_ns(), self.get(index, "opened")
        if now - self.get(index, "handed_at") < _EXPECTED_NANOSECONDS:
            opened = max(opened, self.get(index, "expected"))
        self.set(index, "expected", opened + 1)
        self.set(index, "handed_at", now)
        handed, adopted = self.get(index, "handed"), self.get(index, "adopted")
        if handed == adopted or adopted != self.get(index, "taken_before"):
            self.set(index, "taken_before", adopted)
            self.set(index, "waits_since", now)
        self.set(index, "handed", handed + 1)

    def is_behind(self, index: int) -> bool:
        """Whether a worker has not taken a connection for long: other code holds its GIL."""
        adopted = self.get(index, "adopted")
        return (
            self.get(index, "handed") > adopted == self.get(index, "taken_before")
            and time.monotonic_ns() - self.get(index, "waits_since") > _EXPECTED_NANOSECONDS
        )

    def find(self, serial: int) -> int | None:
        """Returns the index of the worker with a serial number; None if there is none any more."""
        return next((i for i in range(self.size) if self.get(i, "serial") == serial), None)

    def ready(self) -> list[int]:
        """Returns the indices of the workers that serve, and that no signal has stopped."""
        return [
            index
            for index in range(self.size)
            if self.get(index, "serial") and not self.get(index, "is_stopped")
        ]

    def clear(self, index: int) -> None:
        """Forgets a worker that has ended, but for what it has counted."""
        for name in _FIELDS:
            self.set(index, name, 0)


class Slot(Share):
    """The numbers of one worker, as it sees them; thread-safe. Also the `Share` of its worlds.

    Args:
      board: those of all.
      index: which one it is.
    """

    def __init__(self, board: Board, index: int):
        self.board = board
        self.index = index
        self._lock = threading.Lock()

    @property
    def worlds(self) -> int:
        """Worlds, and those that are being made."""
        return self.board.get(self.index, "worlds")

    @worlds.setter
    def worlds(self, value: int) -> None:
        self.board.set(self.index, "worlds", value)

    @property
    def agents(self) -> int:
        """Agents that are joined to them."""
        return self.board.get(self.index, "agents")

    @agents.setter
    def agents(self, value: int) -> None:
        self.board.set(self.index, "agents", value)

    @property
    def held_bytes(self) -> int:
        """The memory for their settings."""
        return self.board.get(self.index, "held_bytes")

    @held_bytes.setter
    def held_bytes(self, value: int) -> None:
        self.board.set(self.index, "held_bytes", value)

    @property
    def other_worlds(self) -> int:
        """Worlds of the other workers."""
        return self.board.total("worlds") - self.worlds

    @property
    def other_held_bytes(self) -> int:
        """The memory for their settings."""
        return self.board.total("held_bytes") - self.held_bytes

    @property
    def serial(self) -> int:
        """The serial number of this worker; 0 while it does not serve."""
        return self.board.get(self.index, "serial")

    def add(self, name: str, count: int) -> None:
        """Adds to one of the numbers."""
        with self._lock:
            self.board.set(self.index, name, self.board.get(self.index, name) + count)

    def where_to_create(self, is_fresh: bool, spreads: bool) -> int:
        """Returns the serial number of the worker that a new world is made in.

        That is this one, unless another has fewer worlds, without the new one.

        Args:
          is_fresh: whether the stream was counted as one that will make a world; it no longer is.
          spreads: whether the client spreads its streams over the workers. Its first world on a
            stream is where the stream is, even if other streams have not arrived yet.
        """
        if is_fresh:
            self.add("fresh", -1)
            if spreads:
                return self.serial
        board = self.board
        least = min(
            board.ready(), key=lambda i: (board.is_behind(i), board.load(i)), default=self.index
        )
        if board.load(least) < board.load(self.index):
            return board.get(least, "serial") or self.serial
        return self.serial
