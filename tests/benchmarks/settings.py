"""How a run of the benchmark goes about it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

from tests.benchmarks.results import Row
from tests.benchmarks.rounds import Contender, alternate


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

    def tell(self, what: str) -> None:
        """Says on stderr what is being measured."""
        if self.shows_progress:
            print(what, file=sys.stderr, flush=True)

    def row(
        self,
        name: str,
        contenders: Mapping[str, Contender],
        what: str | None = None,
        rounds: int | None = None,
    ) -> Row:
        """Has contenders take turns, and tells of the rounds that are done, in one line.

        Args:
          name: of the row.
          contenders: by name.
          what: is measured; None for the name.
          rounds: how many turns each has, if not as many as in other rows.
        """
        total = rounds or self.rounds

        def progress(done: int) -> None:
            if done == total:
                self.tell(f"\r{what or name}: {done} rounds")
            elif self.shows_progress and sys.stderr.isatty():
                print(f"\r{what or name}: {done}/{total}", end="", file=sys.stderr, flush=True)

        return Row(name, alternate(contenders, total, progress))
