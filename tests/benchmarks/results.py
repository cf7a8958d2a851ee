"""What a run of the benchmark finds: sections of rows, and how they stand against targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tests.benchmarks.rounds import Sample


@dataclasses.dataclass(frozen=True)
class Row:
    """One thing that was measured, for all contenders."""

    name: str
    samples: Mapping[str, Sample]

    def ratio(self, slower: str, faster: str) -> float:
        """How many times as long the one takes as the other."""
        return self.samples[slower].median / self.samples[faster].median

    def at_most(
        self, who: str, other: str, limit: float, times: str = "times as long as"
    ) -> Target:
        """What a contender may take, as a multiple of what another takes."""
        text = f"{who}, {self.name}: {times} {other}"
        return Target(text, self.ratio(who, other), limit, is_minimum=False)

    def at_least(
        self, who: str, other: str, limit: float, times: str = "times as fast as"
    ) -> Target:
        """What a contender is to reach, as a multiple of what another reaches."""
        return Target(f"{who}, {self.name}: {times} {other}", self.ratio(other, who), limit)


@dataclasses.dataclass(frozen=True)
class Target:
    """A ratio, or a rate, and what it should be."""

    text: str
    value: float
    limit: float
    is_minimum: bool = True
    is_rate: bool = False
    """Whether it is of this machine, and not compared with anything in the same run."""

    @property
    def is_met(self) -> bool:
        return self.value >= self.limit if self.is_minimum else self.value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.is_minimum else "<="
        verdict = "PASS" if self.is_met else "FAIL"
        return f"{verdict} {self.text}: {self.value:.2f} (target {sign} {self.limit:g})"


@dataclasses.dataclass(frozen=True)
class Section:
    """One part of the table."""

    name: str
    title: str
    rows: list[Row]
    targets: list[Target]
    unit: str = "us"
    scale: float = 1e6
    """Of what is measured, such as seconds, in the unit of the table."""

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def as_json(self) -> dict[str, Any]:
        """Values in the unit of the table."""
        return {
            "section": self.name,
            "title": self.title,
            "unit": self.unit,
            "rows": [
                {
                    "name": row.name,
                    "values": {
                        name: dataclasses.asdict(sample.scaled(self.scale))
                        for name, sample in row.samples.items()
                    },
                }
                for row in self.rows
            ],
            "targets": [
                {**dataclasses.asdict(target), "is_met": target.is_met} for target in self.targets
            ],
        }
