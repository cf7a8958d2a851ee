"""The quick tier: what `python -m pytest` runs where no tests are named.

It has at most two cases of each function, the first and the last. It leaves out the folders of
tests that are about tools, and the functions in `dear.txt`: those take more than a quarter of a
second of processor time, children included, or wait for seconds. What that file keeps is run all
the same, since nothing else runs some lines of the package. `python -m pytest --all` runs every
test that is not marked `slow` or `soak`. Where files, folders, `-k` or `-m` are given, all tests
that they name run.

The gate records the processor time of each test and compares it with the list. The first report,
made with `--junitxml`, is that of the quick tier; others have the tests that it leaves out:

    python -m tests.quick REPORT REPORT            # 1 if the list is out of date
    python -m tests.quick REPORT REPORT --write    # on a machine that does nothing else
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FOLDER = Path(__file__).parent

TOOLS = ("benchmarks", "documentation", "fuzz", "packaging", "scale", "support")
"""Folders of tests that are about tools, texts and archives."""

DEAR_SECONDS = 0.25
"""The processor time from which a case counts as dear."""

_WAITS_SECONDS = 2.5
"""The duration from which a case counts as dear, too."""

_SLOWER_MACHINE = 12.0
"""A test fails the check if it takes so many times as long: machines differ, and some are busy."""

_LIST = FOLDER / "dear.txt"
_HEADER = """\
# Functions of tests that take more than a quarter of a second of processor time in a case, or
# wait for seconds.
# The quick tier leaves them out, but for those that are kept. See tests/quick.py.
"""
_KEPT = "kept "
SPENT = "processor_seconds"
"""The property of a test in a report of pytest."""

_BEGUN = pytest.StashKey[float]()
_LEFT_OUT = pytest.StashKey[int]()
_LEFT_OUT_KEY = "quick_left_out"
_QUICK = "quick"


def function_of(node_id: str) -> str:
    """Returns the name of a test without its parameters."""
    return node_id.partition("[")[0]


def dear(*, kept: bool = False) -> set[str]:
    """Returns the functions of the list that are left out, or those that are kept."""
    lines = [line for line in _LIST.read_text().splitlines() if not line.startswith("#")]
    return {line.removeprefix(_KEPT) for line in lines if line.startswith(_KEPT) == kept}


def quick(node_ids: Iterable[str]) -> set[str]:
    """Returns the tests of the quick tier among all tests, in the order of their collection."""
    left_out = dear()
    cases = collections.defaultdict[str, list[str]](list)
    for node_id in node_ids:
        function = function_of(node_id)
        if function not in left_out and function.split("/")[1] not in TOOLS:
            cases[function].append(node_id)
    return {node_id for names in cases.values() for node_id in (names[0], names[-1])}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every test, not the quick tier alone")
    parser.addoption(
        "--quick",
        action="store_true",
        help="run the quick tier of what is named; the default where nothing is",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Decides in the first process, which tells the others."""
    if hasattr(config, "workerinput"):
        config.option.quick = config.workerinput[_QUICK]
        return
    chosen = any(argument.startswith(("-k", "-m")) for argument in config.invocation_params.args)
    is_named = config.args_source is pytest.Config.ArgsSource.ARGS
    config.option.quick |= not (chosen or is_named or config.option.all)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[_QUICK] = node.config.option.quick


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.quick:
        names = quick(item.nodeid for item in items)
        left_out = [item for item in items if item.nodeid not in names]
        config.stash[_LEFT_OUT] = len(left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid in names]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT_OUT_KEY] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the count from a process of the run: each of them has collected all tests."""
    left_out = getattr(node, "workeroutput", {}).get(_LEFT_OUT_KEY, 0)
    node.config.stash[_LEFT_OUT] = max(left_out, node.config.stash.get(_LEFT_OUT, 0))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Says below pytest's own last line what was left out."""
    left_out = config.stash.get(_LEFT_OUT, 0)
    if left_out and not hasattr(config, "workerinput"):
        config.get_terminal_writer().line(
            f"This was the quick tier; it leaves out {left_out:,} tests. "
            "All tests: python -m pytest --all"
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEGUN] = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Records the processor time of a test and its fixtures for the report."""
    try:
        return (yield)
    finally:
        spent = _processor_seconds() - item.stash[_BEGUN]
        item.user_properties.append((SPENT, f"{spent:.2f}"))


def _processor_seconds() -> float:
    """Returns the processor time of this process and its children, and of those they waited for."""
    times = os.times()
    seconds = times.user + times.system + times.children_user + times.children_system
    ticks = 0
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # A thread has ended.
            for pid in path.read_text().split():
                ticks += sum(map(int, _stat(pid)[11:15]))
    return seconds + ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: str) -> list[str]:
    """Returns what proc(5) says of a process, from its state on; zeros if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 15


class Spent(NamedTuple):
    """What the dearest case of a function took.

    Attributes:
      processor: the processor time, in seconds.
      duration: in seconds.
    """

    processor: float = 0.0
    duration: float = 0.0

    @property
    def is_dear(self) -> bool:
        return self.processor > DEAR_SECONDS or self.duration > _WAITS_SECONDS


def spent_in(reports: Iterable[Path]) -> dict[str, Spent]:
    """Returns what each function in reports took."""
    found: dict[str, Spent] = {}
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            of_case = case.findall(f"./properties/property[@name='{SPENT}']")
            if of_case:  # A file that cannot be imported for want of a package has none.
                name = function_of(_node_id(case.get("classname", ""), case.get("name", "")))
                processor, duration = found.get(name, Spent())
                found[name] = Spent(
                    max(processor, *(float(each.get("value", "")) for each in of_case)),
                    max(duration, float(case.get("time", ""))),
                )
    return found


def _node_id(place: str, name: str) -> str:
    """Returns the name of a test whose place is the dotted one of pytest's report."""
    parts = place.split(".")
    count = next(n for n, part in enumerate(parts, 1) if part.startswith("test_"))
    return "::".join(["/".join(parts[:count]) + ".py", *parts[count:], name])


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares the list with reports; 1 if they differ."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.quick",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="of --junitxml")
    parser.add_argument("--write", action="store_true", help="write tests/dear.txt")
    options = parser.parse_args(arguments)
    quick_tier, every = spent_in(options.reports[:1]), spent_in(options.reports)
    kept, left_out = dear(kept=True), dear()
    gone = (kept | left_out) - every.keys()
    if options.write:
        new = {name for name, spent in quick_tier.items() if spent.is_dear} - kept
        still = {name for name in left_out - gone if every[name].is_dear}
        lines = sorted([*(still | new), *(_KEPT + name for name in kept - gone)])
        _LIST.write_text(_HEADER + "".join(f"{line}\n" for line in lines))
        return 0
    limit = _SLOWER_MACHINE * DEAR_SECONDS
    new = {name for name, spent in quick_tier.items() if spent.processor > limit} - kept
    for name in sorted(new):
        seconds = quick_tier[name].processor
        print(f"{name} takes {seconds:.2f} s of processor time: make it cheaper, or list it")
    for name in sorted(gone):
        print(f"{name} is in {_LIST.name}, and is no test any more")
    return 1 if new or gone else 0


if __name__ == "__main__":
    sys.exit(main())
