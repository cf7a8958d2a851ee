"""The benchmark runs and adds up; its targets are for quiet machines (`-m slow`).

The bounds of the quick tests are weak, for they run beside others on machines of all kinds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.benchmarks import table
from tests.benchmarks.__main__ import SECTIONS
from tests.benchmarks.results import Target
from tests.benchmarks.settings import Settings
from tests.peers import cpp_peers
from tests.peers.building import MissingToolchainError
from tests.support.groups import skip
from tests.support.stopwatch import patience

QUICK_ROUNDS = 3

ATTEMPTS = 3
"""A few rounds say little beside programs that take the processor: 78 times too slow was seen."""

FAR = 30.0
"""Nothing is so many times too slow while nothing else has the processors, as a wrong unit is. It
grows as waits do: beside two busy loops each of three attempts was that slow, the last 37 times."""

SLOW = ("waiting", "one-core-batched", "served", "served-together", "served-computing", "foreign",
        "batched", "batched-single")  # fmt: skip
"""Sections that take ten seconds and more also with few rounds."""

ROUNDS = 40


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(cpp_peers.server())
        except MissingToolchainError as error:
            skip("cpp peer", str(error))
        tcp = stack.enter_context(cpp_peers.tcp_server())
        yield server.hear(), tcp.hear()


@pytest.fixture
def quick(addresses: tuple[str, str]) -> Settings:
    return Settings(*addresses, QUICK_ROUNDS, is_quick=True, shows_progress=False)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SECTIONS],
)
def test_a_section_measures_the_same_contenders_in_each_row(quick: Settings, name: str) -> None:
    for _ in range(ATTEMPTS):
        section = SECTIONS[name](quick)
        assert section.name == name
        first, *others = section.rows
        assert len(first.samples) > 1
        assert all(row.samples.keys() == first.samples.keys() for row in others)
        assert all(target.value > 0 for target in section.targets)
        ratios = [target for target in section.targets if not target.is_rate]
        far = [target for target in ratios if _times(target) >= patience(FAR)]
        if not far:
            break
    assert far == []


def _times(target: Target) -> float:
    """How many times what is allowed a target is."""
    return target.limit / target.value if target.is_minimum else target.value / target.limit


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SECTIONS)
def test_every_target_is_met(addresses: tuple[str, str], name: str) -> None:
    section = SECTIONS[name](Settings(*addresses, ROUNDS))
    print(table.text([section]))
    assert [str(target) for target in section.targets if not target.is_met] == []
