"""The memory that steps hold on to, measured in a process that does nothing else."""

from __future__ import annotations

from multiprocessing.connection import Connection as Pipe
from typing import Any

from dm_env_rpc_client import make
from tests.benchmarks.processes import process
from tests.benchmarks.results import Row, Section, Target
from tests.benchmarks.rounds import Sample
from tests.benchmarks.settings import Settings
from tests.benchmarks.steppers import BEST, TRANSPORTS, our_name
from tests.support.memory import peak, watch

STEPS = 1_000
QUICK_STEPS = 100
FULL_STEPS = 10_000
FRAME_BYTES = 1080 * 1920 * 3
MAX_FRAMES = 4.0
_SECONDS_PER_STEP = 0.05


def _measure(told: Pipe, address: str, transport: Any, steps: int) -> None:
    """Says the peak of memory over so many steps, less the start, in frames."""
    with make(address, {"payload": "video"}, transport=transport) as env:
        start = watch()
        timestep = env.reset()
        for step in range(1, steps + 1):
            timestep = env.step({"action": 1})
            if timestep.observation["payload"][0, 0, 0] != step % 100:
                raise AssertionError(f"step {step} has the frame of another")
        told.send((peak() - start) / FRAME_BYTES)


def memory(settings: Settings) -> Section:
    """Steps of 1080p frames; each transport in a process of its own."""
    steps = QUICK_STEPS if settings.is_quick else FULL_STEPS if settings.is_full else STEPS
    samples = {}
    for transport in TRANSPORTS:
        settings.tell(f"memory of {steps} frames, {our_name(transport)}")
        with process(_measure, settings.address, transport, steps) as told:
            if not told.poll(60 + steps * _SECONDS_PER_STEP):
                raise TimeoutError(f"{steps} steps over {transport} have not ended")
            samples[our_name(transport)] = Sample.of([told.recv()])
    row = Row(f"{steps} steps", samples)
    who = our_name(BEST)
    text = f"{who}: frames held beyond the start"
    targets = [Target(text, samples[who].median, MAX_FRAMES, is_minimum=False)]
    return Section("memory", "Memory of uint8 1080x1920x3 steps", [row], targets, "frames", 1.0)
