"""The scorecard's command: it finds the tests of every row and reports what they saw."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability import report
from tests.reliability.report import FAILED, PASSED
from tests.reliability.scorecard import ROWS, files_of

TRANSPORTS = ["http2"]

NOT_THERE_YET: set[int] = set()


def test_every_row_has_tests_or_is_known_not_to() -> None:
    assert list(ROWS) == sorted(ROWS)
    assert set(files_of()) <= set(ROWS)
    assert set(ROWS) - set(files_of()) <= NOT_THERE_YET


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


@pytest.mark.parametrize(
    ("inner", "outcome"),
    [("", PASSED), ("<failure/>", FAILED), ("<error/>", FAILED), ("<skipped/>", PASSED)],
)
def test_a_row_fails_with_any_of_its_tests(inner: str, outcome: str, tmp_path: Path) -> None:
    assert report.read(ROWS[1], written(tmp_path / "run.xml", inner)).outcome == outcome
