"""Many environments behind one address, stepped by one process."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

import numpy as np

from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from tests.benchmarks.results import Section, Target
from tests.benchmarks.rounds import Contender, timed
from tests.benchmarks.sections.stepping import PAYLOADS
from tests.benchmarks.settings import Settings
from tests.benchmarks.steppers import BEST, REFERENCE, TRANSPORTS, Reference, our_name

LOOP = f"{REFERENCE}, in a loop"
_NUMBER = 16
_PAYLOADS = ("scalar", "uint8", "float32")
_QUICK_PAYLOADS = ("scalar",)
_FASTER = 5.0
_COUNTS = (1, 4, 16, 64, 256)
_QUICK_COUNTS = (4, 16)
_LINEAR = 2.5
"""How much more an environment may cost among many than among 16."""


def vector_name(transport: str) -> str:
    """What the table calls RemoteVectorEnv over a transport."""
    return f"RemoteVectorEnv, {our_name(transport)}"


_CPU = f"{vector_name(BEST)}, CPU of the caller"


def _loop(stack: contextlib.ExitStack, address: str, number: int, payload: str) -> Contender:
    adaptors = []
    for _ in range(number):
        adaptors.append(Reference(address, {"payload": payload}))
        stack.callback(adaptors[-1].close)
        adaptors[-1].step(2)

    def step() -> None:
        for adaptor in adaptors:
            adaptor.step()

    return timed(step, max(1, _steps(number) // 2), number)


def _steps(number: int) -> int:
    """Steps of one turn, so that turns are of some 20 ms."""
    return max(1, 160 // number)


def _contenders(
    stack: contextlib.ExitStack, settings: Settings, number: int, payload: str
) -> dict[str, Contender]:
    made: dict[str, Contender] = {LOOP: _loop(stack, settings.address, number, payload)}
    for transport in TRANSPORTS:
        options: dict[str, Any] = {"transport": transport}
        envs = RemoteVectorEnv(settings.address, number, {"payload": payload}, **options)
        stack.callback(envs.close)
        envs.reset()
        step, steps = functools.partial(envs.step, np.ones(number, np.int32)), _steps(number)
        made[vector_name(transport)] = timed(step, steps, number)
        if transport == BEST:
            made[_CPU] = timed(step, steps, number, time.thread_time)
    return made


def environments(settings: Settings) -> Section:
    """16 environments behind one address, against as many of the reference's adaptors."""
    rows = []
    for payload in _QUICK_PAYLOADS if settings.is_quick else _PAYLOADS:
        name = PAYLOADS[payload]
        with contextlib.ExitStack() as stack:
            contenders = _contenders(stack, settings, _NUMBER, payload)
            del contenders[_CPU]
            rows.append(settings.row(name, contenders, f"{_NUMBER} environments, {name}"))
    best = vector_name(BEST)
    targets = [row.at_least(best, LOOP, _FASTER, "times the steps/s of") for row in rows]
    title = f"A step of one of {_NUMBER} environments behind one address"
    return Section("environments", title, rows, targets)


def growth_by_environments(settings: Settings) -> Section:
    """What a step of one environment costs among more and more of them."""
    rows = []
    for number in _QUICK_COUNTS if settings.is_quick else _COUNTS:
        with contextlib.ExitStack() as stack:
            contenders = _contenders(stack, settings, number, "scalar")
            rows.append(settings.row(str(number), contenders, f"{number} environments"))
    title = "A step of one of N environments, float32 scalar"
    section = Section("growth-environments", title, rows, [])
    few, most = section.row("16"), rows[-1]
    for name in (vector_name(BEST), _CPU):
        ratio = most.samples[name].median / few.samples[name].median
        text = f"{name}: an environment of {most.name}, times the cost of one of {few.name}"
        section.targets.append(Target(text, ratio, _LINEAR, is_minimum=False))
    return section
