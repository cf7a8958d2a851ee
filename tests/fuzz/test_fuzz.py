"""Rows 20 and 28: what the fuzzing harnesses make is read or refused; what they found is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import MEMORY_MIB
from tests.fuzz.targets import CORPUS, TARGETS
from tests.reliability.recording import Seen
from tests.reliability.scorecard import TESTS, counts

FOUND = sorted(CORPUS.rglob("*.hex"))


def fuzz(target: str, *options: str, seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", target, *options],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        # Otherwise each thread may get memory of its own from the C library, which is not freed.
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )


def try_inputs(target: str, count: int, seen: Seen) -> None:
    finished = fuzz(target, "--count", str(count), seconds=100 if count < 50_000 else 7200)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    seen(**{f"{target.replace('-', '_')}_inputs": found["inputs"]}, memory_mib=found["memory_mib"])
    assert found["inputs"] == count
    assert len(found["outcomes"]) > 2
    assert found["memory_mib"] <= MEMORY_MIB


@pytest.mark.row(20)
@counts(4_000, 1_000_000)
def test_generated_tensors_and_specs(count: int, seen: Seen) -> None:
    try_inputs("tensors", count, seen)


@pytest.mark.row(20)
@counts(2_500, 100_000)
def test_answers_and_requests_with_changes(count: int, seen: Seen) -> None:
    try_inputs("envelopes", count, seen)


@pytest.mark.row(20)
@counts(800, 100_000)
def test_streams_of_http2_frames_with_changes(count: int, seen: Seen) -> None:
    try_inputs("http2", count, seen)


@pytest.mark.row(28)
@counts(5_000, 300_000)
def test_packets_of_gym_socket_with_changes(count: int, seen: Seen) -> None:
    try_inputs("gym-socket", count, seen)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_is_treated_right(path: Path) -> None:
    assert TARGETS[path.parent.name].check(bytes.fromhex(path.read_text()))
