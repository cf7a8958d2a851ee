"""One adaptor step: waiting for each answer, and 16 in flight."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tests.benchmarks.results import Row, Section, Target
from tests.benchmarks.rounds import Contender
from tests.benchmarks.settings import Settings
from tests.benchmarks.steppers import (
    BARE_CPP,
    BEST,
    PLAIN_TCP,
    REFERENCE,
    Stepper,
    our_name,
    steppers,
)

PAYLOADS = {
    "scalar": "float32 scalar",
    "vector": "float64[256]",
    "int32": "int32 84x84",
    "uint8": "uint8 84x84x4",
    "float32": "float32 84x84x4",
    "video": "uint8 1080x1920x3",
}
DEPTH = 16

_QUICK_PAYLOADS = ("scalar", "float32")

_STEPS = {"scalar": 60, "vector": 60, "int32": 30, "uint8": 40, "float32": 20, "video": 5}
"""Steps of one turn, so that turns are of about 20 ms."""

_FASTER = {"scalar": 3.5, "uint8": 2.5, "float32": 8.0, "video": 5.0}
"""How many times as fast as the reference a step is to be."""

_SLOWER = (("scalar", BARE_CPP, 1.5), ("video", BARE_CPP, 1.0), ("video", PLAIN_TCP, 1.4))
"""How many times as long as others a step may take."""

_FASTER_AHEAD = {"scalar": 8.0, "float32": 25.0}
"""How many times the reference's waiting rate 16 in flight are to reach."""


def _contender(measure: Callable[[int], float], count: int) -> Contender:
    return lambda: measure(count) / count


def _ahead(stepper: Stepper) -> Callable[[int], float]:
    return lambda count: stepper.ahead(count, DEPTH)


def _payloads(settings: Settings) -> dict[str, str]:
    return {name: PAYLOADS[name] for name in _QUICK_PAYLOADS} if settings.is_quick else PAYLOADS


def waiting(settings: Settings) -> Section:
    """A step, waiting for each answer."""
    payloads = _payloads(settings)
    rows = []
    for payload, name in payloads.items():
        with contextlib.ExitStack() as stack:
            everybody = steppers(stack, settings.address, settings.tcp_address, payload)
            contenders = {
                who: _contender(stepper.wait, _STEPS[payload]) for who, stepper in everybody.items()
            }
            rows.append(settings.row(name, contenders, f"waiting, {name}"))
    targets = _waiting_targets(dict(zip(payloads, rows, strict=True)))
    return Section("waiting", "One step, waiting for each answer", rows, targets)


def _waiting_targets(by_payload: dict[str, Row]) -> list[Target]:
    best = our_name(BEST)
    targets = [
        by_payload[payload].at_least(best, REFERENCE, limit)
        for payload, limit in _FASTER.items()
        if payload in by_payload
    ]
    targets += [
        by_payload[payload].at_most(best, other, limit)
        for payload, other, limit in _SLOWER
        if payload in by_payload
    ]
    return targets + [row.at_least(our_name("grpc"), REFERENCE, 1.0) for row in by_payload.values()]


def pipelined(settings: Settings) -> Section:
    """A step of many that are sent ahead of the answers; the reference cannot and waits."""
    rows = []
    for payload, name in _payloads(settings).items():
        count = max(DEPTH * 2, _STEPS[payload])
        with contextlib.ExitStack() as stack:
            everybody = steppers(stack, settings.address, settings.tcp_address, payload)
            contenders = {
                who: _contender(_ahead(stepper), count)
                for who, stepper in everybody.items()
                if who != REFERENCE
            }
            reference = everybody[REFERENCE]
            contenders[f"{REFERENCE}, waiting"] = _contender(reference.wait, _STEPS[payload])
            rows.append(settings.row(name, contenders, f"pipelined, {name}"))
    best = our_name(BEST)
    targets = [
        Target(
            f"{best}, {PAYLOADS[payload]}, {DEPTH} deep: times the waiting rate of {REFERENCE}",
            row.ratio(f"{REFERENCE}, waiting", best),
            limit,
        )
        for row in rows
        for payload, limit in _FASTER_AHEAD.items()
        if PAYLOADS[payload] == row.name
    ]
    return Section("pipelined", f"One step of many, {DEPTH} pending", rows, targets)
