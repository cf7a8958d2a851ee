"""Makes random mutants of files and says which the tests do not notice.

    python -m tests.mutants dm_env_rpc_client/protocol/lifecycle.py
    python -m tests.mutants dm_env_rpc_client/server --seed 7 --count 60 --json found.json
    python -m tests.mutants FILE --list          # all mutants, without a run
    python -m tests.mutants FILE --only FILE:12:8:removed
    python -m pytest --cov --cov-context=test && python -m tests.mutants FILE --measured .coverage

A mutant is a file with one change: a comparison, an operator, a number, a condition, or a
statement that is removed. For each one the tests that concern the file run in a copy of the
checkout, the nearest first, until one fails. The same seed picks the same mutants of the same
files. The exit code is 1 if one was not noticed. Such a mutant either changes nothing that can be
seen, or a test is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.changes import Mutant, mutants_of
from tests.mutants.concern import concerning, covering
from tests.mutants.trying import Copy, Found, copied

ROOT = Path(__file__).parents[2]


def files_in(paths: Iterable[str]) -> list[Path]:
    """Returns the files of the package among files and folders, without what is generated."""
    found = set()
    for path in map(Path, paths):
        for each in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if "_proto" not in each.parts:
                found.add(each.resolve())
    return sorted(found)


def chosen(paths: Iterable[str], seed: int, count: int | None, only: Sequence[str]) -> list[Mutant]:
    """Returns mutants of files, in the order in which they are tried.

    Args:
      paths: files and folders.
      seed: of the choice.
      count: how many; None for all.
      only: names of mutants; if there are some, these are returned.
    """
    found: list[Mutant] = []
    for path in files_in(paths):
        found += mutants_of(path.relative_to(ROOT).as_posix(), path.read_text())
    if only:
        return [mutant for mutant in found if mutant.name in only]
    if count is None:
        return found
    return random.Random(seed).sample(found, min(count, len(found)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries what is asked for; 1 if a mutant was not noticed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files and folders of the package")
    parser.add_argument("--seed", type=int, default=0, help="of the choice; default: 0")
    parser.add_argument("--count", type=int, default=20, help="how many; default: 20")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at a time; default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes what was found")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="in place of the chosen tests")
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="coverage with a context for each test"
    )
    parser.add_argument("-k", dest="keyword", default="", help="of tests, as pytest's -k")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant")
    parser.add_argument("--list", action="store_true", help="list all mutants, and try none")
    options = parser.parse_args(arguments)
    mutants = chosen(
        options.paths, options.seed, None if options.list else options.count, options.only
    )
    if options.list:
        print(*mutants, sep="\n")
        return 0
    results, failing = _try(mutants, options)
    survived = [mutant for mutant, found in results if not found.noticed_by]
    if options.json:
        options.json.write_text(json.dumps(_report(options.seed, results, failing), indent=1))
    for name in failing:
        print(f"left out, since it fails without a change: {name}")
    for mutant in survived:
        print(f"not noticed: {mutant}")
    print(f"{len(results)} mutants, {len(results) - len(survived)} noticed, {len(survived)} not")
    return 1 if survived else 0


def _try(
    mutants: Sequence[Mutant], options: argparse.Namespace
) -> tuple[list[tuple[Mutant, Found]], list[str]]:
    """Returns what became of each mutant, and the tests that fail without one."""
    results: list[tuple[Mutant, Found]] = []
    with contextlib.ExitStack() as stack:
        copies = [
            stack.enter_context(copied(ROOT, options.keyword)) for _ in range(max(1, options.jobs))
        ]
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in copies:
            free.put(copy)

        def notice(mutant: Mutant) -> Found:
            copy = free.get()
            groups = [options.tests] if options.tests else _groups(mutant, options.measured)
            try:
                return copy.notice(mutant, groups)
            finally:
                free.put(copy)

        pool = stack.enter_context(ThreadPoolExecutor(len(copies)))
        running = {pool.submit(notice, mutant): mutant for mutant in mutants}
        try:
            for done in as_completed(running):
                results.append((running[done], done.result()))
                _tell(results, len(mutants))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results, sorted({name for copy in copies for name in copy.failing})


def _groups(mutant: Mutant, measured: Path | None) -> list[list[str]]:
    groups = concerning(mutant.path, ROOT)
    if measured is not None:
        groups.insert(0, covering(mutant.path, mutant.line, measured, ROOT))
    return groups


def _tell(results: Sequence[tuple[Mutant, Found]], count: int) -> None:
    """Writes a line of progress, about the last result."""
    mutant, found = results[-1]
    survived = sum(not each.noticed_by for _, each in results)
    what = f"noticed by {found.noticed_by}" if found.noticed_by else "NOT NOTICED"
    progress = f"[{len(results)}/{count}, {survived} not noticed]"
    print(f"{progress} {mutant}: {what}, {found.seconds:.0f} s", file=sys.stderr, flush=True)


def _report(
    seed: int, results: Sequence[tuple[Mutant, Found]], failing: Sequence[str]
) -> dict[str, object]:
    return {
        "seed": seed,
        "survived": sum(not found.noticed_by for _, found in results),
        "left_out": list(failing),
        "mutants": [
            {
                **{name: getattr(mutant, name) for name in ("name", "path", "line", "kind")},
                "before": mutant.before,
                "after": mutant.after,
                "noticed_by": found.noticed_by,
                "seconds": round(found.seconds, 1),
            }
            for mutant, found in results
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
