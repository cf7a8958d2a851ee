"""Environments that surprise, by every way of travelling: the same, or the same error."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.recording import Seen
from tests.travelling.documented import DIFFERENT, EVERYWHERE, UNLIKE, expected_in
from tests.travelling.environments.all import HABITS
from tests.travelling.told import difference
from tests.travelling.ways.all import WAYS, cells
from tests.travelling.ways.places import Places

pytestmark = pytest.mark.row(61)

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    logging.getLogger("dm_env_rpc_client").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        yield Places(stack, tmp_path_factory.mktemp("recordings"))
    logging.getLogger("dm_env_rpc_client").setLevel(logging.NOTSET)


def unlike(cell: tuple[str, str]) -> list[str]:
    """The sentence about a cell that is unlike those in process; none for most."""
    return [UNLIKE[cell][1]] if cell in UNLIKE else []


def parameters(is_whole: bool) -> list[Any]:
    """The cells as parameters of a test; those that are unlike have to fail."""
    return [
        pytest.param(
            *cell,
            id=", ".join(cell),
            marks=[pytest.mark.xfail(reason=sentence, strict=True) for sentence in unlike(cell)],
        )
        for cell in cells(is_whole)
    ]


def check(places: Places, way: str, habit: str) -> None:
    calls = HABITS[habit].calls
    expected = expected_in(way, habit, WAYS[way].expected(HABITS[habit]), calls)
    found = WAYS[way].play(places, habit, calls)
    assert len(found) == len(expected)
    for row, (mine, other) in enumerate(zip(found, expected, strict=True)):
        assert not (text := difference(mine, other)), f"row {row}: {text}"


@pytest.mark.parametrize(("way", "habit"), parameters(is_whole=True))
def test_the_same_as_in_process(places: Places, seen: Seen, way: str, habit: str) -> None:
    check(places, way, habit)
    seen(cells=1)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("way", "habit"), parameters(is_whole=False))
def test_the_same_by_other_transports_and_processes(
    places: Places, seen: Seen, way: str, habit: str
) -> None:
    check(places, way, habit)
    seen(cells=1)


def test_what_is_different_is_in_the_guides() -> None:
    quoted = [(guide, sentence) for guide, all_of in EVERYWHERE.items() for sentence in all_of]
    quoted += [(each.guide, each.sentence) for each in DIFFERENT]
    quoted += UNLIKE.values()
    listed = " ".join((DOCS / "reference/differences.md").read_text().split())
    for guide, sentence in quoted:
        words = " ".join((DOCS / guide).read_text().split())
        assert sentence in words, (guide, sentence)
        assert sentence in listed, sentence
    ways, habits = map(set, zip(*{*cells(True), *cells(False)}, strict=True))
    assert f"steps {len(habits)} ordinary, unusual and misbehaving" in listed
    assert f"in {len(ways)} remote setups" in listed


def test_the_lists_name_cells_that_there_are() -> None:
    there = {*cells(True), *cells(False)}
    assert set(UNLIKE) <= there
    for each in DIFFERENT:
        assert set(itertools.product(each.ways, each.habits)) <= there
