"""Row 24, in processes of its own: one that steps for long, its server, and one to compare with.

    python -m tests.reliability.connections.soak STEPS

A twentieth of the steps is waited for one by one, and their durations are compared; the others are
pipelined. Other programs slow steps down, too. For that reason, a process that only sends back what
it gets through a pipe takes turns with the steps that are waited for: how its durations drift is
the drift of the machine. How long client and server had a processor depends less on others. The
program prints, as JSON, how memory and the numbers of threads grew,
and how the durations drifted; what it did so far is written to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np

from dm_env_rpc_client import DmEnvAdaptor, make
from tests.support import forks
from tests.support.both_transports import obey
from tests.support.programs import processor_seconds
from tests.support.scripted import served_echo, settles

CHUNK = 500
"""How many steps are pipelined at a time."""

PARTS = 100
"""Of the run: durations are compared between the first and the last tenth of them."""

ALONE = 20
"""One of so many steps is waited for."""

_QUICK_STEPS = 50
"""Steps after which a server has seen that its answers are quick."""


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def threads_after_steps(env: DmEnvAdaptor, pids: Sequence[int]) -> int:
    for value in range(_QUICK_STEPS):
        env.step({"value": value})
    return sum(map(threads_of, pids))


def _send_back(pipe: Pipe) -> None:
    while True:
        pipe.send_bytes(pipe.recv_bytes())


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def drift(percentiles: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The last tenth as a ratio to the first."""
    tenth = PARTS // 10
    return float(np.median(percentiles[-tenth:]) / np.median(percentiles[:tenth]))


@contextlib.contextmanager
def _echo() -> Iterator[Callable[[], None]]:
    """Gives what sends bytes to another process and waits until they are back."""
    with forks.child(_send_back) as (_, pipe):

        def turn_around() -> None:
            pipe.send_bytes(b"12345678")
            pipe.recv_bytes()

        yield turn_around


def _tell(steps: int, seconds: float, p99: Iterable[float], grown: Sequence[int]) -> None:
    """Says how far the run is."""
    step, pipe = (each * 1e6 for each in p99)
    client, server = (each / 2**20 for each in grown)
    print(
        f"{time.strftime('%H:%M:%S')} {steps:,} steps in {seconds:.0f} s; p99 of a step, of the"
        f" pipe: {step:.0f}, {pipe:.0f} us; memory of client, server: {client:+.2f},"
        f" {server:+.2f} MiB; load {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
        flush=True,
    )


def main(steps: int) -> dict[str, float]:
    """Steps an environment, and compares the processes at the end with those at the beginning."""
    of_part = steps // PARTS
    alone = of_part // ALONE
    durations = np.zeros((2, alone))
    percentiles = np.zeros((2, PARTS))
    processor = np.zeros(PARTS + 1)

    def take(env: DmEnvAdaptor, turn_around: Callable[[], None]) -> None:
        """Takes the steps of one part."""
        for index in range(alone):
            started = time.perf_counter()
            timestep = env.step({"value": index})
            durations[0, index] = time.perf_counter() - started
            assert timestep.observation["value"] == index
            durations[1, index] = _seconds(turn_around)
        for begin in range(alone, of_part, CHUNK):
            values = np.arange(begin, min(begin + CHUNK, of_part))
            timesteps = env.unroll({"value": values})
            assert np.array_equal(timesteps.observation["value"], values)

    with _echo() as turn_around, served_echo() as server, make(server.address) as env:
        pids = [os.getpid(), server.pid]
        env.reset()
        for _ in range(5):
            take(env, turn_around)  # What is made once has been made.
        memory = [resident_bytes(pid) for pid in pids]
        threads = sum(map(threads_of, pids))
        processor[0] = sum(map(processor_seconds, pids))
        began = time.perf_counter()
        for part in range(PARTS):
            take(env, turn_around)
            processor[part + 1] = sum(map(processor_seconds, pids))
            percentiles[:, part] = np.percentile(durations, 99, axis=1)
            grown = [resident_bytes(pid) - had for pid, had in zip(pids, memory, strict=True)]
            seconds = time.perf_counter() - began
            _tell((part + 1) * of_part, seconds, percentiles[:, part], grown)
        took = time.perf_counter() - began
        of_steps, of_pipe = map(drift, percentiles)
        # A step that was slow, as any is on a busy machine, has a thread of the server until some
        # steps have been quick.
        settles(lambda: threads_after_steps(env, pids) <= threads)
        more = sum(map(threads_of, pids)) - threads
        first_tenth = processor[PARTS // 10] - processor[0]
        last_tenth = processor[-1] - processor[-1 - PARTS // 10]
    return {
        "steps": of_part * PARTS,
        "steps_per_second": of_part * PARTS / took,
        "memory_mib": grown[0] / (1 << 20),
        "server_memory_mib": grown[1] / (1 << 20),
        "threads_more": more,
        "steps_drift_percent": (of_steps - 1) * 100,
        "pipe_drift_percent": (of_pipe - 1) * 100,
        "drift_percent": (of_steps / of_pipe - 1) * 100,
        "processor_drift_percent": (last_tenth / first_tenth - 1) * 100 if first_tenth else 0.0,
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    obey()
    print(json.dumps(main(int(sys.argv[1]))))
