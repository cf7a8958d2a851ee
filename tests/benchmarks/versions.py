"""Two versions of the package, step by step in turns: `python -m tests.benchmarks.versions COMMIT`.

    python -m tests.benchmarks.versions 562b5870            # that commit, and the working tree
    python -m tests.benchmarks.versions 562b5870 HEAD --only make --only "batch of 64"
    python -m tests.benchmarks.versions 562b5870 --free --json found.json

For each way of stepping, both versions serve an environment that computes nothing and step it, in
bursts that alternate, so that a noisy machine slows both. The ratio is the median over the rounds
of the newer version's time of a step over the older one's in the same round, with the quartiles in
brackets. Everything runs on one processor, and the time is the processor time of client and server;
with `--free` it is the time that passes, and every processor may be used.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks import version_bursts
from tests.support.programs import ROOT

__all__ = ["main", "measure"]

BURST_SECONDS = 0.1


def _checked_out(commit: str, beside: Path) -> Path:
    """Returns a folder with the package of a commit."""
    archived = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "dm_env_rpc_client"],
        check=True,
        capture_output=True,
    )
    folder = beside / commit
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@contextlib.contextmanager
def _stepping(folder: Path, case: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, version_bursts.__file__, "step", case, str(BURST_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        if ready != "ready\n":
            raise RuntimeError(f"{case!r} of {folder} did not begin, it said {ready!r}")
        yield process
    finally:
        process.stdin.close()
        process.wait(60)


def _burst(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [float(each) for each in process.stdout.readline().split()]


def measure(folders: Sequence[Path], case: str, rounds: int, free: bool) -> dict[str, list[float]]:
    """Steps two versions in turns.

    Args:
      folders: the older package's folder and the newer one's.
      case: a key of `version_bursts.CASES`.
      rounds: bursts of each.
      free: whether to measure the time that passes, not the processor time.

    Returns:
      The microseconds of a step of each in each round: `older`, `newer`, and their `ratio`.
    """
    with contextlib.ExitStack() as stack:
        older, newer = (stack.enter_context(_stepping(folder, case)) for folder in folders)
        found: dict[str, list[float]] = {"older": [], "newer": [], "ratio": []}
        for turn in range(rounds):
            in_turn = (("older", older), ("newer", newer))
            # The one that is first in a round is second in the next.
            for name, process in in_turn[:: 1 if turn % 2 else -1]:
                found[name].append(_burst(process)[0 if free else 1])
            found["ratio"].append(found["newer"][-1] / found["older"][-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code, which is 1 if a ratio is above the bound."""
    description, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.versions",
        description=f"{description}\n\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("older", help="a commit")
    parser.add_argument("newer", nargs="?", help="a commit; default: the working tree")
    parser.add_argument("--only", action="append", choices=version_bursts.CASES, help="repeatable")
    parser.add_argument(
        "--rounds", type=int, default=40, help="bursts of each version; default: 40"
    )
    parser.add_argument("--free", action="store_true", help="on all processors, by wall time")
    parser.add_argument("--most", type=float, help="the bound of a ratio")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes what was measured")
    options = parser.parse_args(arguments)
    if not options.free:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    measured = {}
    above = False
    with tempfile.TemporaryDirectory() as folder:
        folders = [
            _checked_out(options.older, Path(folder)),
            _checked_out(options.newer, Path(folder)) if options.newer else ROOT,
        ]
        for case in options.only or version_bursts.CASES:
            found = measured[case] = measure(folders, case, options.rounds, options.free)
            low, middle, high = statistics.quantiles(found["ratio"], n=4)
            older, newer = (statistics.median(found[name]) for name in ("older", "newer"))
            is_above = options.most is not None and middle > options.most
            above = above or is_above
            print(
                f"{case:28} {older:8.1f} {newer:8.1f} us  {middle:.3f} [{low:.3f}, {high:.3f}]"
                f"{'  above the bound' if is_above else ''}",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1))
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
