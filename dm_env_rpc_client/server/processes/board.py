"""What the processes of a server see of one another: a few numbers of each, in shared memory.

Each worker writes its own numbers only, and nobody waits for a lock that a killed worker might
hold. The server's own process clears those of a worker that has ended, but for what it has counted:
the one that replaces it goes on counting there.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time

from dm_env_rpc_client.server.activity import COUNTED
from dm_env_rpc_client.server.worlds.holding import Share
from dm_env_rpc_client.system.locks import make_lock

_EXPECTED_NANOSECONDS = 1_000_000_000
"""For how long a connection that was handed over is expected to open a stream."""


class Row(ctypes.Structure):
    """The numbers of one worker."""

    serial: int  # Which worker it is; 0 for none, or for one that does not serve yet.
    streams: int  # Streams of clients that are open.
    fresh: int  # Those of them that have neither created nor joined a world.
    worlds: int  # Worlds, and those that are being made.
    agents: int  # Agents that are joined to them.
    held_bytes: int  # The memory for their settings.
    opened: int  # Streams that were ever opened.
    adopted: int  # Connections that were ever taken.
    # The server's own process writes these.
    is_stopped: int  # Whether a signal has stopped it.
    handed: int  # Connections that were handed to it.
    handed_at: int  # When the last was, in nanoseconds of the monotonic clock.
    waits_since: int  # When one was handed to it, and none has been taken after that.
    taken_before: int  # What `adopted` was then.
    expected: int  # What `opened` will be when each has opened a stream.

    counted: ctypes.Array[ctypes.c_int64]
    """What the workers at this place have counted since the start, by `COUNTED`."""

    _numbers = tuple(name for name in __annotations__ if name != "counted")
    _fields_ = (
        *((name, ctypes.c_int64) for name in _numbers),
        ("counted", ctypes.c_int64 * len(COUNTED)),
    )

    @property
    def load(self) -> int:
        """The worlds that the worker has, and will probably have soon."""
        load = self.worlds + self.fresh
        if time.monotonic_ns() - self.handed_at < _EXPECTED_NANOSECONDS:
            load += max(0, self.expected - self.opened)
        return load

    @property
    def is_behind(self) -> bool:
        """Whether it has not taken a connection for long: other code holds its GIL."""
        return (
            self.handed > self.adopted == self.taken_before
            and time.monotonic_ns() - self.waits_since > _EXPECTED_NANOSECONDS
        )

    def hand(self) -> None:
        """Counts a connection that is handed to it."""
        now, opened = time.monotonic_ns(), self.opened
        if now - self.handed_at < _EXPECTED_NANOSECONDS:
            opened = max(opened, self.expected)
        self.expected = opened + 1
        self.handed_at = now
        adopted = self.adopted
        if self.handed == adopted or adopted != self.taken_before:
            self.taken_before = adopted
            self.waits_since = now
        self.handed += 1

    def clear(self) -> None:
        """Forgets a worker that has ended, but for what it has counted."""
        for name in self._numbers:
            setattr(self, name, 0)


class Board:
    """The numbers of all workers. It can be given to processes that are started.

    Args:
      size: the number of workers.

    Attributes:
      rows: those of each.
    """

    def __init__(self, size: int):
        self.rows: ctypes.Array[Row] = multiprocessing.get_context("spawn").RawArray(Row, size)

    def total(self, name: str) -> int:
        """Returns the sum over all workers."""
        return sum(getattr(row, name) for row in self.rows)

    def ready(self) -> dict[int, Row]:
        """Returns the workers that serve and that no signal has stopped, by their place."""
        return {
            index: row for index, row in enumerate(self.rows) if row.serial and not row.is_stopped
        }


class Slot(Share):
    """The numbers of one worker, as it sees them; thread-safe. Also the `Share` of its worlds.

    Args:
      board: those of all.
      index: which one it is.

    Attributes:
      board: as the argument.
      row: its own.
    """

    def __init__(self, board: Board, index: int):
        self.board = board
        self.row = board.rows[index]
        self._lock = make_lock()

    def add(self, name: str, count: int) -> None:
        with self._lock:
            setattr(self.row, name, getattr(self.row, name) + count)

    def total(self, name: str) -> int:
        return self.board.total(name)

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
                return self.row.serial
        others = self.board.ready().values()
        least = min(others, key=lambda row: (row.is_behind, row.load), default=self.row)
        if least.load < self.row.load:
            return least.serial or self.row.serial
        return self.row.serial
