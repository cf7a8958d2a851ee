"""What tests of the scorecard say that they saw.

`seen` is a fixture of all tests. The hooks are a plugin that the scorecard's command loads
(`-p tests.reliability.recording`): they select the tests of one row and write what each of them
saw.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.reliability.scorecard import FULL, MODE

ROW, RECORD = "SCORECARD_ROW", "SCORECARD_RECORD"
"""Variables: the row whose tests run, and the file to which each test adds a line of JSON."""

_KEY = "seen"


class Seen(Protocol):
    """Takes counts (int, added up over tests) and extremes (float, of which the largest counts).

    The name of a count says what was counted, `kills=200`; that of an extreme may end with its
    unit, `noticed_s=0.03`. Units: s, ms, mib, percent.
    """

    def __call__(self, **values: float) -> None: ...


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Seen:
    """Records what the test saw, for the scorecard."""

    def record(**values: float) -> None:
        request.node.user_properties.append((_KEY, values))
        print(*(f"{name}={value:.6g}" for name, value in values.items()))

    return record


def _rows(item: pytest.Item) -> set[int]:
    return {number for marker in item.iter_markers("row") for number in marker.args}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ROW not in os.environ:
        return
    wanted = [item for item in items if int(os.environ[ROW]) in _rows(item)]
    soaked = {_function(item) for item in wanted if item.get_closest_marker("soak")}
    is_full = os.environ[MODE] == FULL

    def is_chosen(item: pytest.Item) -> bool:
        is_soak = item.get_closest_marker("soak") is not None
        return is_soak or _function(item) not in soaked if is_full else not is_soak

    chosen = list(filter(is_chosen, wanted))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _function(item: pytest.Item) -> tuple[Path, str]:
    """What all parametrisations of one test have in common."""
    return item.path, item.nodeid.partition("[")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if RECORD in os.environ and (report.when == "call" or report.outcome != "passed"):
        line: dict[str, Any] = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 3),
            "seen": [values for key, values in report.user_properties if key == _KEY],
        }
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "transport" in parameters:
            line["transport"] = parameters["transport"]
        if report.outcome == "failed":
            line["error"] = report.longreprtext[-3000:]
        with open(os.environ[RECORD], "a") as record:
            record.write(json.dumps(line) + "\n")
    return report
