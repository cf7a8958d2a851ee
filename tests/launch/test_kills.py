"""Clients are killed at random moments, and nothing of what they have launched is left."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.launch.processes import (
    ECHO,
    ROOT,
    is_alive,
)
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.scripted import settles

CLIENT = f"""
from dm_env_rpc_client import make
env = make({ECHO!r})
timestep = env.reset()
step = 0
while True:
    step += 1
    assert env.step({{"value": step}}).observation["value"] == step
    if step == 1:
        print("stepped", flush=True)
"""


@counts(3, 50)
def test_clients_that_are_killed(count: int, tmp_path: Path, seen: Seen) -> None:
    chance = random.Random(count)
    served = 0
    for number in range(count):
        mark = uuid.uuid4().hex
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            cwd=ROOT,
            env={**os.environ, "MARK": mark, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            # Every other one is served, whatever the machine does besides.
            if number % 2:
                time.sleep(chance.uniform(0.0, 3.0))  # At any moment.
            else:
                assert client.stdout is not None
                assert client.stdout.readline() == "stepped\n"
            assert client.poll() is None
            served += len(list(marked(mark))) > 1
            client.kill()
        assert settles(lambda mark=mark: not list(marked(mark)), 20)  # type: ignore[misc]
    assert served >= count / 2
    # What was killed before there was a supervisor may leave an empty folder behind.
    assert [path for path in tmp_path.iterdir() if any(path.iterdir())] == []
    seen(clients=count, with_servers=served)


def marked(mark: str) -> Iterator[int]:
    """Yields the processes with a text in the environment that they were started with."""
    for each in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            is_running = each.isdigit() and is_alive(int(each))
            if is_running and mark.encode() in Path(f"/proc/{each}/environ").read_bytes():
                yield int(each)
