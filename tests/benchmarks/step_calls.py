"""How many functions of this package one step calls: `python -m tests.benchmarks.step_calls`.

The processor's time of a cheap step is the calls of Python in it, at each end. Counted are calls
of functions in files of this package, in the thread that steps and in those of a server in another
process, as the mean of many steps after some that warm up. `--list` names them.
"""

from __future__ import annotations

import argparse
import collections
import sys
import threading
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import FrameType
from typing import Any

import dm_env_rpc_client
from dm_env_rpc_client.server import Catch, serve
from tests.benchmarks.processes import process

_OWN = str(Path(dm_env_rpc_client.__file__).parent)
_WARM_UP = 200
_STEPS = 2_000

Counts = collections.Counter[str]


class _Calls:
    """Counts the calls of own functions in the threads in which it is the profile function."""

    def __init__(self) -> None:
        self.counts: Counts = collections.Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_OWN):
            where = frame.f_code.co_filename.removeprefix(_OWN + "/")
            self.counts[f"{where}:{frame.f_code.co_name}"] += 1


def _serve(told: Pipe) -> None:
    """Serves; answers each question with the counts so far."""
    calls = _Calls()
    threading.setprofile(calls)
    with serve(Catch) as server:
        told.send(server.address)
        while told.recv() is not None:
            told.send(calls.counts)


def counted(steps: int = _STEPS) -> tuple[Counts, Counts, int]:
    """Returns the calls of all steps, at the client and at the server, and how many steps."""
    calls = _Calls()
    with process(_serve) as server, dm_env_rpc_client.make(server.recv()) as env:

        def server_counts() -> Counts:
            server.send("counts")
            found: Counts = server.recv()
            return found

        env.reset()
        for _ in range(_WARM_UP):
            env.step({"paddle": 1})
        before = server_counts()
        sys.setprofile(calls)
        for _ in range(steps):
            env.step({"paddle": 1})
        sys.setprofile(None)
        after = server_counts()
    return calls.counts, after - before, steps


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.step_calls")
    parser.add_argument("--list", action="store_true", help="name the functions")
    options = parser.parse_args()
    client, server, steps = counted()
    for end, counts in (("client", client), ("server", server)):
        files = {name.split(":")[0] for name in counts}
        print(f"{end}: {counts.total() / steps:.1f} calls a step, in {len(files)} files")
        if options.list:
            for name, count in counts.most_common():
                if count * 20 >= steps:
                    print(f"  {count / steps:6.2f}  {name}")


if __name__ == "__main__":
    main()
