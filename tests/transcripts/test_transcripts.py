"""What passes between clients and servers is what was recorded; `python -m tests.transcripts`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.groups import need
from tests.transcripts import recorded_files
from tests.transcripts.compare import differences
from tests.transcripts.scenarios import SCENARIOS
from tests.transcripts.scene import Shared, transcript

MOST_BYTES = 500_000

ALL = [(group, name) for group, scenarios in SCENARIOS.items() for name in scenarios]


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with Shared() as servers:
        yield servers


@pytest.mark.parametrize(("group", "name"), ALL, ids=lambda part: part.replace(" ", "-"))
def test_the_same_bytes_pass(shared: Shared, group: str, name: str) -> None:
    scenario = SCENARIOS[group][name]
    if scenario.needs:
        need(scenario.needs)
    recorded = recorded_files.read(recorded_files.path_of(group))
    changed = differences(recorded.get(name, []), transcript(scenario, shared))
    assert not changed, "\n".join([f"{group}/{name}: python -m tests.transcripts", *changed])


def test_each_recorded_transcript_has_a_scenario() -> None:
    paths = {recorded_files.path_of(group): group for group in SCENARIOS}
    folder = recorded_files.FOLDER
    assert {path.name for path in folder.iterdir()} == {path.name for path in paths}
    for path, group in paths.items():
        assert list(recorded_files.read(path)) == list(SCENARIOS[group])


def test_the_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in recorded_files.FOLDER.iterdir()) <= MOST_BYTES
