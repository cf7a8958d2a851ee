"""The benchmark: one command, one table.

    python -m tests.benchmarks

Builds the C++ peers where they are not built yet, measures on loopback, and says how the
ratios stand against their targets.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import picture, table
from tests.benchmarks.results import Section
from tests.benchmarks.sections import (
    batches,
    foreign,
    one_core,
    recording,
    serving,
    simulators,
    stepping,
)
from tests.benchmarks.settings import Settings
from tests.peers import cpp_peers

SECTIONS: dict[str, Callable[[Settings], Section]] = {
    "waiting": stepping.waiting,
    "pipelined": stepping.pipelined,
    "served": serving.served,
    "served-together": serving.served_together,
    "served-computing": serving.served_computing,
    "one-core": one_core.one_core,
    "one-core-batched": one_core.one_core_batched,
    "batched": batches.batched,
    "batched-single": batches.batched_single,
    "foreign": foreign.foreign,
    "recording": recording.recording,
    "simulators": simulators.simulators,
}
ROUNDS = 40
QUICK_ROUNDS = 5


def main(arguments: list[str] | None = None) -> int:
    """Runs the sections and prints what they find; 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", choices=list(SECTIONS), action="append", help="repeatable")
    parser.add_argument("--rounds", type=int, help=f"turns of each contender; {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="few rounds and small sizes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--picture", type=Path, help="draw the steps as bars into this PNG file")
    options = parser.parse_args(arguments)
    with cpp_peers.server() as server, cpp_peers.tcp_server() as tcp:
        settings = Settings(
            server.hear(),
            tcp.hear(),
            options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
            options.quick,
        )
        sections = [SECTIONS[name](settings) for name in options.only or SECTIONS]
    if options.picture:
        picture.draw(sections, options.picture)
    if options.json:
        print(json.dumps([section.as_json() for section in sections]))
    else:
        print(table.text(sections))
    return 0 if all(target.is_met for section in sections for target in section.targets) else 1


if __name__ == "__main__":
    sys.exit(main())
