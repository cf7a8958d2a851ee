"""What a step costs with larger and larger observations."""

from __future__ import annotations

import contextlib

from tests.benchmarks.results import Section, Target
from tests.benchmarks.rounds import Contender
from tests.benchmarks.settings import Settings
from tests.benchmarks.steppers import BARE_GRPCIO, BEST, Stepper, our_name, steppers

_KIB = 2**10
_MIB = 2**20
_SIZES = (4 * _KIB, 64 * _KIB, _MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB)
_QUICK_SIZES = (_MIB, 4 * _MIB)
_BASE = 4 * _MIB
_LINEAR = 2.0
"""How much more a byte may cost at the largest size than at 4 MiB."""


def _name(size: int) -> str:
    return f"{size // _MIB} MiB" if size >= _MIB else f"{size // _KIB} KiB"


def _contender(stepper: Stepper, size: int) -> Contender:
    count = max(1, min(50, _BASE // size))
    return lambda: stepper.wait(count) / count


def growth(settings: Settings) -> Section:
    """One step, waiting for each answer, by the size of its observation."""
    rows = []
    sizes = _QUICK_SIZES if settings.is_quick else _SIZES
    for size in sizes:
        with contextlib.ExitStack() as stack:
            everybody = steppers(stack, settings.address, settings.tcp_address, "bytes", size)
            del everybody[BARE_GRPCIO]
            contenders = {who: _contender(stepper, size) for who, stepper in everybody.items()}
            rounds = max(3, settings.rounds // 4)
            rows.append(settings.row(_name(size), contenders, rounds=rounds))
    section = Section("growth", "One step by the size of its observation", rows, [])
    base, largest = section.row(_name(_BASE)), rows[-1]
    times = sizes[-1] / _BASE
    who = our_name(BEST)
    ratio = largest.samples[who].median / base.samples[who].median / times
    text = f"{who}: a byte of {largest.name}, times the cost of one of {base.name}"
    section.targets.append(Target(text, ratio, _LINEAR, is_minimum=False))
    return section
