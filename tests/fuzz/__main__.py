"""Fuzzes one target: `python -m tests.fuzz tensors --seconds 60 --seed 7`.

Prints, as JSON, how many inputs had which outcome and by how much the peak of memory grew. An input
that is treated wrong is written to `corpus/`, where the tests try it again, and the command ends
with the exception and exit code 1. The same seed makes the same inputs.
"""

from __future__ import annotations

import argparse
import collections
import gc
import hashlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from tests.fuzz.targets import CORPUS, TARGETS, input_of
from tests.support.memory import peak

MEMORY_MIB = 64

_WARM_UP = 500
_COLLECTED = 50


def keep(target: str, contents: bytes) -> Path:
    """Writes an input to the corpus."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(contents).hexdigest()[:12]}.hex"
    path.write_text(contents.hex() + "\n")
    return path


def fuzz(target: str, seed: int, seconds: float | None, count: int | None) -> dict[str, Any]:
    """Tries inputs until the time is over or there have been so many."""
    outcomes: collections.Counter[str] = collections.Counter()
    began, before, index = time.monotonic(), peak() / 2**20, 0
    while (count is None or index < count) and (
        seconds is None or index % 16 or time.monotonic() < began + seconds
    ):
        contents = input_of(target, seed, index)
        try:
            outcomes[TARGETS[target].check(contents)] += 1
        except BaseException as error:
            if isinstance(error, Exception | SystemExit):
                path = keep(target, contents)
                print(f"input {index} of seed {seed}: {path}", file=sys.stderr)
            raise
        index += 1
        if index % _COLLECTED == 0:
            gc.collect()  # What waits for this is not memory that an input takes.
        if index == _WARM_UP:
            gc.freeze()
            before = peak() / 2**20  # What is loaded on first use does not count.
    return {
        "inputs": index,
        "outcomes": dict(outcomes.most_common()),
        "seconds": round(time.monotonic() - began, 1),
        "memory_mib": round(peak() / 2**20 - before, 1),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, help="how long; default 60, unless --count")
    parser.add_argument("--count", type=int, help="how many inputs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.disable()
    seconds = 60.0 if options.seconds is None and options.count is None else options.seconds
    found = fuzz(options.target, options.seed, seconds, options.count)
    print(json.dumps(found))
    if found["memory_mib"] > MEMORY_MIB:
        print(f"memory grew by more than {MEMORY_MIB} MiB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
