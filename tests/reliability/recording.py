"""What tests of the scorecard say that they saw.

`seen` is a fixture of all tests; what it takes stands in pytest's own report (`--junitxml`). The
hook is a plugin that the scorecard's command loads (`-p tests.reliability.recording`): it selects
the tests of one row.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import pytest

from tests.reliability.scorecard import FULL, MODE

ROW = "SCORECARD_ROW"
"""The variable with the row whose tests run."""


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
        request.node.user_properties.extend(values.items())
        print(*(f"{name}={value:.6g}" for name, value in values.items()))

    return record


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ROW not in os.environ:
        return
    number = int(os.environ[ROW])
    wanted = [
        item for item in items if any(number in marker.args for marker in item.iter_markers("row"))
    ]
    soaked = {_function(item) for item in wanted if item.get_closest_marker("soak")}
    is_full = os.environ[MODE] == FULL

    def is_chosen(item: pytest.Item) -> bool:
        is_soak = item.get_closest_marker("soak") is not None
        return is_soak or _function(item) not in soaked if is_full else not is_soak

    chosen = list(filter(is_chosen, wanted))
    for item in chosen:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "transport" in parameters:
            item.user_properties.append(("transport", parameters["transport"]))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def _function(item: pytest.Item) -> tuple[Path, str]:
    """What all parametrisations of one test have in common."""
    return item.path, item.nodeid.partition("[")[0]
