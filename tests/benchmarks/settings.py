"""How a run of the benchmark goes about it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

__all__ = ["Settings"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What every section is given.

    Attributes:
      address: of the C++ peer's server.
      tcp_address: of the C++ peer's TCP server.
      rounds: how many turns each contender has.
      is_quick: whether the largest sizes and counts are left out.
      shows_progress: whether what is being measured is told on stderr.
    """

    address: str
    tcp_address: str
    rounds: int
    is_quick: bool = False
    shows_progress: bool = True

    def progress(self, what: str) -> Callable[[int], None]:
        """Returns what tells of the rounds that are done."""

        def tell(done: int) -> None:
            if self.shows_progress:
                end = "\n" if done == self.rounds else ""
                print(f"\r{what}: {done}/{self.rounds}", end=end, file=sys.stderr, flush=True)

        return tell
