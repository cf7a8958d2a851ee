"""Row 28 of the reliability scorecard, over sockets; `tests/fuzz` changes packets without them.

In a process of its own, so that its memory can be seen.
"""

from __future__ import annotations

import json

import pytest

from tests.bridges.gym_socket import hostile
from tests.reliability.recording import Seen
from tests.support.programs import run_python


@pytest.mark.row(28)
@pytest.mark.parametrize("count", [50, pytest.param(2_000, marks=pytest.mark.soak)])
def test_mutated_frames_end_in_an_answer_an_error_or_a_disconnect(count: int, seen: Seen) -> None:
    # Otherwise each thread may get memory of its own from the C library, which is not freed.
    variables = {"MALLOC_ARENA_MAX": "1"}
    result = run_python("-W", "error", "-m", hostile.__name__, count, environment=variables)
    found = json.loads(result.stdout)
    seen(frames=found["frames"], memory_mib=float(found["peak_growth_mib"]), **found["outcomes"])
    assert found["frames"] >= count
    assert found["outcomes"]["disconnect"] > count / 10
    assert found["outcomes"]["ProtocolError"] > 5
    assert found["peak_growth_mib"] <= 8
    assert found["imported"] == []
    assert found["server_errors"] == []
