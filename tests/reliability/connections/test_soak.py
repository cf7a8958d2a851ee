"""Row 24: many steps leave memory, threads and durations as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict

MACHINE_PERCENT = 30
"""If a pipe drifts by so much, the machine does, and the durations say nothing of the package."""

ATTEMPTS = 3
"""Measurements of durations at most, until the machine is the same at the end."""

HOURS = 3600


def measured(count: int, progress: Path) -> dict[str, Any]:
    """Steps in a process of its own, and returns what it found."""
    with progress.open("w") as file:
        finished = subprocess.run(
            [sys.executable, "-m", "tests.reliability.connections.soak", str(count)],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            timeout=6 * HOURS,
            check=False,
            # Otherwise threads may get memory of their own from the C library, which keeps it.
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        )
    assert finished.returncode == 0, progress.read_text()
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


@pytest.mark.row(24)
@counts(3_000, 10_000_000, seconds=6 * HOURS)
def test_many_steps_leave_memory_threads_and_durations_as_they_were(
    count: int, seen: Seen, transport: str, tmp_path: Path
) -> None:
    if transport == "grpc":
        count = min(count, 1_000_000)  # A step takes several times as long there.
    for attempt in range(ATTEMPTS):
        found = measured(count, tmp_path / "progress.txt")
        seen(
            steps=found["steps"],
            memory_mib=found["memory_mib"],
            server_memory_mib=found["server_memory_mib"],
            threads_more=float(found["threads_more"]),
            measured_again=int(attempt > 0),
        )
        assert found["steps"] == count
        assert found["memory_mib"] <= 5
        assert found["server_memory_mib"] <= 5
        has_grown = transport == "grpc" and found["threads_more"] > 0
        if has_grown and attempt + 1 < ATTEMPTS:
            continue  # grpcio's pool of threads grows on a busy machine; a leak shows each time.
        assert found["threads_more"] <= 0
        if not is_strict() or abs(found["pipe_drift_percent"]) < MACHINE_PERCENT:
            break  # The machine was the same at the end.
    seen(
        **{f"{transport}_steps_per_second": round(found["steps_per_second"])},
        p99_of_steps_drift_percent=found["steps_drift_percent"],
        p99_of_a_pipe_beside_them_drift_percent=found["pipe_drift_percent"],
        ratio_of_both_drift_percent=found["drift_percent"],
        processor_time_drift_percent=found["processor_drift_percent"],
        load=found["load"],
    )
    if is_strict():  # So few steps as in the gate say nothing about durations.
        steps, pipe = found["steps_drift_percent"], found["pipe_drift_percent"]
        # The machine drifts, too; as long as that is little, the pipe says by how much.
        drift = found["drift_percent"] if abs(pipe) < MACHINE_PERCENT else steps
        assert min(steps, drift) < 10, f"{steps:.0f} %; a pipe beside them {pipe:.0f} %"
