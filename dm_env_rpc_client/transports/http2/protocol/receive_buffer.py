"""Memory for what is received until it has been parsed.

It is used from its beginning again whenever everything in it has been parsed, so bytes are
moved only when a frame is cut by the end of the memory.
"""

from __future__ import annotations

import mmap

SIZE = 1 << 18
"""Large enough for many answers at once."""


class ReceiveBuffer:
    """The bytes from `start` to `end` of `memory` have been received and not parsed.

    Args:
      size: of the memory. Pages that were never used take none.

    Attributes:
      memory: all of the buffer.
      start: where the next byte to parse is.
      end: where the next byte to receive goes.
    """

    __slots__ = ("end", "memory", "start")

    def __init__(self, size: int = SIZE):
        self.memory = memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.start = self.end = 0

    def compact(self, room: int) -> None:
        """Makes room for `room` bytes from `start` on, and for at least one from `end` on."""
        if self.start == self.end:
            self.start = self.end = 0
        elif len(self.memory) - self.start < room or self.end == len(self.memory):
            rest = bytes(self.memory[self.start : self.end])
            self.memory[: len(rest)] = rest
            self.start, self.end = 0, len(rest)
