"""Row 24: many steps leave memory, threads and durations as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict

HOURS = 3600


@pytest.mark.row(24)
@counts(3_000, 10_000_000, seconds=6 * HOURS)
def test_many_steps_leave_memory_threads_and_durations_as_they_were(
    count: int, seen: Seen, transport: str
) -> None:
    if transport == "grpc":
        count = min(count, 1_000_000)  # A step takes several times as long there.
    finished = subprocess.run(
        [sys.executable, "-m", "tests.reliability.soak", str(count)],
        capture_output=True,
        text=True,
        timeout=6 * HOURS,
        check=False,
        # Otherwise each thread may get memory of its own from the C library, which is not freed.
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    seen(
        steps=found["steps"],
        steps_per_second=round(found["steps_per_second"]),
        memory_mib=found["memory_mib"],
        threads_more=float(found["threads_more"]),
        drift_percent=found["drift_percent"],
    )
    assert found["steps"] == count
    assert found["memory_mib"] <= 5
    assert found["threads_more"] <= 0
    if is_strict():  # On a busy machine durations say nothing.
        assert found["drift_percent"] < 10
