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
from tests.benchmarks.rounds import Sample, alternate
from tests.benchmarks.sections import many_environments, recording, serving, stepping
from tests.benchmarks.sections.codec import OURS
from tests.benchmarks.settings import Settings
from tests.benchmarks.steppers import BARE_CPP, BEST, PLAIN_TCP, REFERENCE, TRANSPORTS, our_name
from tests.groups import skip
from tests.peers import cpp_peers
from tests.peers.building import MissingToolchainError

QUICK_ROUNDS = 3
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


def test_a_step_is_not_slower_than_the_references(quick: Settings) -> None:
    section = SECTIONS["waiting"](quick)
    assert section.rows[0].name == "float32 scalar"
    for row in section.rows:
        names = {REFERENCE, steppers.BARE_GRPCIO, BARE_CPP, PLAIN_TCP}
        assert set(row.samples) == names | set(map(our_name, TRANSPORTS))
        assert row.ratio(REFERENCE, BEST_NAME) > 0.4
        assert row.ratio(BEST_NAME, PLAIN_TCP) > 0.3
    assert section.row("float32 84x84x4").ratio(REFERENCE, BEST_NAME) > 2


def test_steps_in_flight_are_faster_than_waiting(quick: Settings) -> None:
    section = SECTIONS["pipelined"](quick)
    waiting = f"{REFERENCE}, waiting"
    assert section.row("float32 scalar").ratio(waiting, BEST_NAME) > 0.5
    assert section.row("float32 84x84x4").ratio(waiting, BEST_NAME) > 3


# A few rounds on a machine that may be busy: the ratios are 50 and more on a quiet one.


def test_the_codec_is_faster_than_the_references(quick: Settings) -> None:
    image = SECTIONS["codec"](quick).row("float32 84x84x4")
    assert image.ratio(f"decode, {REFERENCE}", f"decode, {OURS}") > 3
    assert image.ratio(f"encode, {REFERENCE}", f"encode, {OURS}") > 3


def test_tensors_are_packed_faster_than_by_the_reference(quick: Settings) -> None:
    image = SECTIONS["tensors"](quick).row("float32 84x84x4")
    assert image.ratio(f"pack_tensor, {REFERENCE}", f"pack_tensor, {OURS}") > 3
    assert image.ratio(f"unpack_tensor, {REFERENCE}", f"unpack_tensor, {OURS}") > 3


def test_16_environments_are_faster_together(quick: Settings) -> None:
    section = SECTIONS["environments"](quick)
    together = many_environments.vector_name(BEST)
    for row in section.rows:
        assert row.ratio(many_environments.LOOP, together) > 0.3


def test_a_served_environment_is_faster_than_the_references(quick: Settings) -> None:
    section = SECTIONS["served"](quick)
    for row in section.rows:
        assert set(row.samples) == {
            serving.OURS,
            serving.OURS_UNIX,
            serving.OURS_GRPC,
            serving.REFERENCE_PAIR,
            serving.ASYNC,
            serving.PIPE,
        }
        assert row.ratio(serving.REFERENCE_PAIR, serving.OURS) > 1


def test_a_cpp_client_is_served_about_as_fast_as_by_cpp(quick: Settings) -> None:
    section = SECTIONS["served-to-cpp"](quick)
    (target,) = section.targets
    assert 0.2 < target.value < 3 * target.limit


def test_served_environments_share_a_socket_and_are_compared(quick: Settings) -> None:
    section = SECTIONS["served-together"](quick)
    for row in section.rows:
        assert set(row.samples) == {serving.BATCHED, serving.VECTOR, serving.ASYNC}
        assert row.ratio(serving.ASYNC, serving.BATCHED) > 0.1


def test_environments_that_compute_are_compared(quick: Settings) -> None:
    section = SECTIONS["served-computing"](quick)
    (row,) = section.rows
    assert len(row.samples) == 5
    assert row.ratio(serving.ASYNC, f"{serving.BATCHED}, 2 processes") > 0.1


def test_a_recorded_step_is_compared_with_one_that_is_not(quick: Settings) -> None:
    section = SECTIONS["recording"](quick)
    (row,) = section.rows
    assert set(row.samples) == {recording.PLAIN, recording.RECORDED, recording.PROXY}
    assert row.ratio(recording.RECORDED, recording.PLAIN) < 3


@pytest.mark.parametrize("name", ["growth", "growth-environments"])
def test_cost_grows_about_linearly(quick: Settings, name: str) -> None:
    for target in SECTIONS[name](quick).targets:
        assert target.value < 3 * target.limit


def test_frames_are_let_go_of(quick: Settings) -> None:
    for target in SECTIONS["memory"](quick).targets:
        # grpcio has buffers of its own; 100 frames that are kept would be 100.
        assert 0.5 < target.value < 40


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
