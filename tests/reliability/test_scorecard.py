"""The scorecard's command: it finds the tests of every row and reports what they saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability import report
from tests.reliability.__main__ import main
from tests.reliability.report import FAILED, MISSING, PASSED, RowResult
from tests.reliability.scorecard import ROWS, files_of
from tests.support.programs import run_python

TRANSPORTS = ["http2"]

NOT_THERE_YET: set[int] = set()


def test_every_row_has_tests_or_is_known_not_to() -> None:
    assert list(ROWS) == sorted(ROWS)
    assert set(files_of()) <= set(ROWS)
    assert set(ROWS) - set(files_of()) <= NOT_THERE_YET


def test_the_command_runs_a_row_and_writes_what_it_saw(tmp_path: Path) -> None:
    # The gate's options, such as the coverage that is required, are not for this run.
    finished = run_python(
        *("-m", "tests.reliability", "--quick", "--rows", "18"),
        *("--reports", tmp_path, "--markdown", tmp_path / "run.md"),
        environment={"PYTEST_ADDOPTS": ""},
    )
    said = finished.stdout.replace("\n    ", " ")
    assert "18 refused states; 18 of 18 tests passed; grpc and http2" in said
    row = report.read(ROWS[18], tmp_path / "row-18-quick.xml")
    assert row.counts == {"refused_states": 18}
    assert (
        "| 18 | state 0, state 99, transitions that the protocol does not allow | "
        "ProtocolError; never a TimeStep | a LAST that is false | passed: "
        in (tmp_path / "run.md").read_text()
    )


def test_a_row_without_a_test_is_listed_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.reliability.__main__.files_of", dict)
    assert main(["--quick", "--rows", "39-40"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("result: not there yet") == 2
    assert printed.endswith("2 not there yet\n")


def test_the_rows_are_listed_with_their_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--rows", "8,22"]) == 0
    printed = capsys.readouterr().out
    assert "   tests/reliability/hostile/test_answers.py\n22 every pair" in printed
    assert printed.endswith("   tests/tensors/test_casting.py\n")


@pytest.mark.parametrize("rows", ["0", "99", "2-1", "x", "1,,2"])
def test_rows_that_do_not_exist_are_refused(rows: str) -> None:
    with pytest.raises(SystemExit):
        main(["--rows", rows])


REPORT = """<testsuites><testsuite time="1.5">
<testcase name="a"><properties>
<property name="kills" value="2"/><property name="noticed_s" value="0.0"/>
<property name="threads_more" value="2.0"/></properties></testcase>
<testcase name="b"><properties>
<property name="kills" value="2"/><property name="noticed_s" value="1.0"/></properties>{}</testcase>
</testsuite></testsuites>"""


def written(path: Path, *inner: str) -> Path:
    path.write_text(REPORT.format(*inner))
    return path


def test_counts_add_up_and_the_largest_extreme_is_shown(tmp_path: Path) -> None:
    assert (
        report.read(ROWS[1], written(tmp_path / "run.xml", "")).seen
        == "4 kills; noticed at most 1 s; threads more at most 2; 2 of 2 tests passed"
    )


def test_the_rows_of_an_earlier_run_with_these_counts_are_reported_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "row-1-quick.xml", "")
    written(tmp_path / "row-2-full.xml", "")
    monkeypatch.setattr("tests.reliability.__main__.files_of", dict)
    table = tmp_path / "run.md"
    asked = ["--rows", "39", "--reports", str(tmp_path), "--markdown", str(table)]
    assert main(["--quick", *asked]) == 1
    assert capsys.readouterr().out.endswith("1 passed, 1 not there yet\n")
    assert table.read_text().count("not run") == len(ROWS) - 2


@pytest.mark.parametrize(
    ("inner", "outcome"),
    [("", PASSED), ("<failure/>", FAILED), ("<error/>", FAILED), ("<skipped/>", PASSED)],
)
def test_a_row_fails_with_any_of_its_tests(inner: str, outcome: str, tmp_path: Path) -> None:
    assert report.read(ROWS[1], written(tmp_path / "run.xml", inner)).outcome == outcome


def test_a_row_without_a_report_fails_and_one_without_tests_is_not_there(tmp_path: Path) -> None:
    assert report.read(ROWS[1], tmp_path / "none.xml").outcome == FAILED
    (tmp_path / "run.xml").write_text("<testsuites/>")
    assert report.read(ROWS[1], tmp_path / "run.xml").outcome == MISSING
    assert RowResult(ROWS[1], [report.SKIPPED]).outcome == report.SKIPPED
