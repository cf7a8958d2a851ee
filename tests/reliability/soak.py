"""Row 24, in processes of its own: one that steps for long, and its server.

    python -m tests.reliability.soak STEPS

A tenth of the steps is waited for one by one, and their durations are compared; the others are
pipelined. It prints, as JSON, how memory and the number of threads grew, and how the durations
drifted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from dm_env_rpc_client import DmEnvAdaptor, make
from tests.both_transports import obey
from tests.scripted import served_echo, thread_count

CHUNK = 500
"""How many steps are pipelined at a time."""

PARTS = 100
"""Of the run: durations are compared between the first and the last tenth of them."""


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def percentile_99(seconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.percentile(seconds, 99))


def main(steps: int) -> dict[str, float]:
    """Steps an environment, and compares the process at the end with that at the beginning."""
    of_part = steps // PARTS
    alone = of_part // 10
    seconds = np.zeros(alone)
    percentiles = np.zeros(PARTS)

    def take(env: DmEnvAdaptor) -> None:
        """Takes the steps of one part."""
        for index in range(alone):
            started = time.perf_counter()
            timestep = env.step({"value": index})
            seconds[index] = time.perf_counter() - started
            assert timestep.observation["value"] == index
        for begin in range(alone, of_part, CHUNK):
            values = np.arange(begin, min(begin + CHUNK, of_part))
            timesteps = env.unroll({"value": values})
            assert np.array_equal(timesteps.observation["value"], values)

    with served_echo() as server, make(server.address) as env:
        env.reset()
        for _ in range(5):
            take(env)  # What is made once has been made.
        memory, threads = resident_bytes(), thread_count()
        began = time.perf_counter()
        for part in range(PARTS):
            take(env)
            percentiles[part] = percentile_99(seconds)
        took = time.perf_counter() - began
        tenth = PARTS // 10
        first, last = np.median(percentiles[:tenth]), np.median(percentiles[-tenth:])
        return {
            "steps": of_part * PARTS,
            "steps_per_second": of_part * PARTS / took,
            "memory_mib": (resident_bytes() - memory) / (1 << 20),
            "threads_more": thread_count() - threads,
            "drift_percent": float(last / first - 1) * 100,
        }


if __name__ == "__main__":
    obey()
    print(json.dumps(main(int(sys.argv[1]))))
