"""Compares two versions of the package: `python -m tests.benchmarks.versions COMMIT`.

    python -m tests.benchmarks.versions 562b5870            # that commit, and the working tree
    python -m tests.benchmarks.versions 562b5870 HEAD --only make --only "batch of 64"
    python -m tests.benchmarks.versions 562b5870 --free --json found.json

Both versions step an environment that computes nothing, in every way of stepping, in bursts that
take turns. The columns are the medians over the rounds: the microseconds of a step of the older and
the newer version, and the ratio of both in the same round, with its quartiles. Ratios are taken
within rounds because the speed of a machine may change from one second to the next. It also differs
between two starts of the same program, by 5 to 20 % of a step: repeat the command before you trust
a difference of that size.

Everything runs on one processor, and the time is the processor time of client and server together;
with `--free`, every processor may be used, and the time is the time that passes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks.rounds import Contender, take_turns
from tests.benchmarks.version_bursts import CASES
from tests.support.history import package_at
from tests.support.programs import ROOT

__all__ = ["main", "measure"]

BURST_SECONDS = 0.1
END_SECONDS = 60.0


@contextlib.contextmanager
def _stepping(folder: Path, case: str, free: bool) -> Iterator[Contender]:
    """A contender that steps the package in a folder, in processes of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.version_bursts", case, str(BURST_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,  # With `-m`, the working directory comes before PYTHONPATH.
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def turn() -> float:
            asks.write("\n")
            asks.flush()
            passed, used = map(float, answers.readline().split())
            return passed if free else used

        try:
            imported = answers.readline().strip()
            if not imported.startswith(f"{folder}{os.sep}"):
                raise RuntimeError(f"{case!r} of {folder} did not begin: it imported {imported!r}")
            yield turn
            asks.close()
            process.wait(END_SECONDS)
        finally:
            process.kill()  # Does nothing where it has ended; its server ends with it.


def measure(folders: Sequence[Path], case: str, rounds: int, free: bool) -> list[list[float]]:
    """Steps versions in turns.

    Args:
      folders: the packages.
      case: a key of `version_bursts.CASES`.
      rounds: how many bursts of each.
      free: whether to measure the time that passes in place of the processor time.

    Returns:
      For each version, the seconds of a step in each round.
    """
    with contextlib.ExitStack() as stack:
        contenders = {
            str(number): stack.enter_context(_stepping(folder, case, free))
            for number, folder in enumerate(folders)
        }
        return list(take_turns(contenders, rounds).values())


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("older", help="a commit")
    parser.add_argument("newer", nargs="?", help="a commit; default: the working tree")
    parser.add_argument("--only", action="append", choices=CASES, help="repeatable")
    parser.add_argument(
        "--rounds", type=int, default=40, help="bursts of each version; default: 40"
    )
    parser.add_argument(
        "--free", action="store_true", help="use all processors, and measure the time that passes"
    )
    parser.add_argument("--most", type=float, help="exit with 1 if a ratio is above this bound")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code, which is 1 if a ratio is above the bound."""
    options = _options(arguments)
    if not options.free:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    folders = [
        package_at(options.older),
        ROOT if options.newer is None else package_at(options.newer),
    ]
    measured = {}
    above = []
    for case in options.only or CASES:
        older, newer = measure(folders, case, options.rounds, options.free)
        ratios = [b / a for a, b in zip(older, newer, strict=True)]
        low, ratio, high = np.percentile(ratios, [25, 50, 75]).tolist()
        is_above = options.most is not None and ratio > options.most
        above += [case] * is_above
        remark = f"  above {options.most}" if is_above else ""
        medians = "".join(f"{np.median(each) * 1e6:10.1f}" for each in (older, newer))
        print(f"{case:38}{medians} us {ratio:6.3f} [{low:.3f}, {high:.3f}]{remark}", flush=True)
        measured[case] = {"older": older, "newer": newer, "ratio": ratio}
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1))
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())
