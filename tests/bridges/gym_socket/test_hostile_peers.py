"""Row 28 of the reliability scorecard, in a process of its own so that its memory can be seen."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.reliability.recording import Seen

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.row(28)
@pytest.mark.parametrize("count", [4_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_mutated_frames_end_in_an_answer_an_error_or_a_disconnect(count: int, seen: Seen) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.bridges.gym_socket.hostile", str(count)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        # Otherwise each thread may get memory of its own from the C library, which is not freed.
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    seen(frames=found["frames"], memory_mib=float(found["peak_growth_mib"]), **found["outcomes"])
    assert found["frames"] >= count
    assert found["outcomes"]["disconnect"] > count / 10
    assert found["outcomes"]["error"] > count / 10
    assert found["peak_growth_mib"] <= 8
    assert found["imported"] == []
    assert found["server_errors"] == []
