"""The benchmark runs and adds up; its targets are for quiet machines (`-m slow`).

The bounds of the quick tests are weak, for they run beside others on machines of all kinds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.text import Text

from tests.benchmarks import results, steppers, table
from tests.benchmarks.__main__ import SECTIONS, main
from tests.benchmarks.picture import MAX_BYTES, draw, figure
from tests.benchmarks.results import Target
from tests.benchmarks.rounds import Sample, alternate
from tests.benchmarks.sections import stepping
from tests.benchmarks.settings import Settings
from tests.benchmarks.steppers import BARE_CPP, BEST, PLAIN_TCP, REFERENCE, TRANSPORTS, our_name
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
        "batched", "batched-single", "batched-rate")  # fmt: skip
"""Sections that take ten seconds and more also with few rounds."""

ROUNDS = 40
BEST_NAME = our_name(BEST)


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
    section = SECTIONS[name](Settings(*addresses, ROUNDS, is_full=True))
    print(table.text([section]))
    assert [str(target) for target in section.targets if not target.is_met] == []


def test_contenders_take_turns() -> None:
    taken = []

    def contender(name: str) -> float:
        taken.append(name)
        return float(len(taken))

    samples = alternate({name: lambda name=name: contender(name) for name in "abc"}, 5)  # type: ignore[misc]
    assert len(taken) == 15
    for turn in range(5):
        assert set(taken[turn * 3 : turn * 3 + 3]) == set("abc")
    assert samples["a"].low <= samples["a"].median <= samples["a"].high


def section_of(value: float, limit: float, is_minimum: bool) -> results.Section:
    row = results.Row("x", {"a": Sample(2e-6, 1e-6, 3e-6), "b": Sample(1e-3, 1e-3, 1e-3)})
    target = results.Target("a ratio", value, limit, is_minimum)
    return results.Section("s", "A section", [row], [target])


@pytest.mark.parametrize(
    ("value", "is_minimum", "verdict"),
    [(3.0, True, "PASS"), (1.0, True, "FAIL"), (1.0, False, "PASS"), (3.0, False, "FAIL")],
)
def test_the_table_says_what_was_found(value: float, is_minimum: bool, verdict: str) -> None:
    text = table.text([section_of(value, 2.0, is_minimum)])
    assert "A section (us: median, p10-p90)" in text
    assert "2 (1-3)" in text
    assert "1000" in text
    assert f"{verdict} a ratio: {value:.2f} (target {'>=' if is_minimum else '<='} 2)" in text


def test_json_has_the_numbers_of_the_table() -> None:
    found = json.loads(json.dumps(section_of(3.0, 2.0, True).as_json()))
    assert found["rows"][0]["values"]["a"] == pytest.approx({"median": 2, "low": 1, "high": 3})
    assert found["targets"][0]["is_met"] is True


def test_the_picture_is_small_enough_for_a_readme(tmp_path: Path) -> None:
    samples = {REFERENCE: Sample(2e-4, 1e-4, 3e-4), BEST_NAME: Sample(1e-4, 1e-4, 2e-4)}
    rows = [results.Row(name, samples) for name in stepping.PAYLOADS.values()]
    waiting = results.Section("waiting", "Waiting", rows, [])
    draw([waiting, section_of(1.0, 1.0, True)], tmp_path / "bars.png")
    content = (tmp_path / "bars.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert 5_000 < len(content) < MAX_BYTES
    with pytest.raises(ValueError, match="waiting and pipelined"):
        draw([section_of(1.0, 1.0, True)], tmp_path / "none.png")


def test_no_label_of_the_picture_overlaps_another_or_leaves_it() -> None:
    names = [REFERENCE, steppers.BARE_GRPCIO, *map(our_name, TRANSPORTS), BARE_CPP, PLAIN_TCP]
    samples = {name: Sample(*[0.0987654 / (1 + i)] * 3) for i, name in enumerate(names)}
    rows = [results.Row(name, samples) for name in stepping.PAYLOADS.values()]
    drawn = figure([results.Section(name, name, rows, []) for name in ("waiting", "pipelined")])
    drawn.canvas.draw()
    boxes = [
        (text.get_text(), text.get_window_extent())
        for text in drawn.findobj(Text)
        if isinstance(text, Text) and text.get_text() and text.get_visible()
    ]
    assert {"98,765", REFERENCE, BEST_NAME, "uint8 1080x1920x3"} <= {text for text, _ in boxes}
    assert not any("this" in text for text, _ in boxes)
    for (one, box), (other, other_box) in itertools.combinations(boxes, 2):
        assert not box.overlaps(other_box), f"{one} overlaps {other}"
    for text, box in boxes:
        assert drawn.bbox.containsx(box.x0), text
        assert drawn.bbox.containsx(box.x1), text


def test_the_command_prints_one_section(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["--quick", "--rounds", "2", "--only", "waiting", "--json"])
    except MissingToolchainError as error:
        skip("cpp peer", str(error))
    (section,) = json.loads(capsys.readouterr().out)
    assert section["section"] == "waiting"
    assert code == (0 if all(target["is_met"] for target in section["targets"]) else 1)
