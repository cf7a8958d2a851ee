"""The scorecard's command: it finds the tests of every row and reports what they saw."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from tests.reliability import report
from tests.reliability.__main__ import main
from tests.reliability.report import FAILED, MISSING, PASSED, RowResult
from tests.reliability.scorecard import FULL, QUICK, ROWS, files_of
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
        *("-m", "tests.reliability", "--quick", "--rows", "7"),
        *("--json", tmp_path / "run.json", "--markdown", tmp_path / "run.md"),
        environment={"PYTEST_ADDOPTS": ""},
    )
    assert "200 cancellations; 0 stale answers" in finished.stdout.replace("\n    ", " ")
    (row,) = json.loads((tmp_path / "run.json").read_text())["rows"]
    assert row["seen"]["cancellations"] == 200
    assert {test["transport"] for test in row["tests"]} == {"http2", "grpc"}
    assert (
        "| 7 | 1,000 cancelled coroutines | 0 stale answers, 0 lost answers | InvalidStateError | "
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


def result(*outcomes: str, code: int = 0) -> RowResult:
    tests = [
        {
            "test": "t",
            "outcome": outcome,
            "seen": [{"kills": 2, "noticed_s": float(index), "threads_more": 2.0}],
        }
        for index, outcome in enumerate(outcomes)
    ]
    return RowResult(ROWS[1], tests, 1.0, code)


def test_counts_add_up_and_the_largest_extreme_is_shown() -> None:
    assert (
        result("passed", "passed").seen
        == "4 kills; noticed at most 1 s; threads more at most 2; 2 of 2 tests passed"
    )


def test_the_rows_of_an_earlier_run_are_reported_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    about = report.facts(QUICK, datetime.datetime.now(), 1.0)
    path.write_text(report.as_json([result("passed")], about))
    monkeypatch.setattr("tests.reliability.__main__.files_of", dict)
    assert main(["--quick", "--rows", "39", "--with", str(path), "--json", str(path)]) == 1
    assert capsys.readouterr().out.endswith("1 passed, 1 not there yet\n")
    assert [row["row"] for row in json.loads(path.read_text())["rows"]] == [1, 39]
    with pytest.raises(ValueError, match="other counts"):
        report.read(path, FULL)


def test_a_row_fails_with_any_of_its_tests() -> None:
    assert result("passed").outcome == PASSED
    assert result("passed", "failed").outcome == FAILED
    assert result("passed", code=2).outcome == FAILED
    assert result("skipped").outcome == report.SKIPPED
    assert result().outcome == MISSING
