from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.system.polling import processors
from dm_env_rpc_client.testing import ScriptedServer, echo
from tests.reliability.recording import seen
from tests.support import timeouts
from tests.support.environments import Echo
from tests.support.groups import GROUPS, need, passed_in, report_together, reported_name
from tests.support.ports import usual_ports_held
from tests.support.progress import Folders
from tests.support.reports import make_encodable
from tests.support.stopwatch import Stopwatch

__all__ = ["seen"]

pytest_plugins = ["tests.quick"]

FIRST = (
    "transcripts",
    "notebook",
    "documentation",
    "compliance",
    "recording",
    "adaptors",
    "cli",
    "reliability",
    "interop",
    "benchmarks",
    "environment",
    "bridges",
    "transports",
    "testing",
    "fuzz",
    "packaging",
)
"""Where the longest files are. They are begun first, so that none of them is left for the end."""

# A shell that starts a command in the background has it ignore SIGINT, and what it starts, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of processes that import the package: each would compile it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Each of them imports NumPy, whose OpenBLAS starts threads that wait in a loop at first: importing
# this package takes 0.3 seconds of the processors without them, and 0.5 with them.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# On a busy machine a slow example says nothing about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--need-packages",
        action="store_true",
        help="a test whose package is not installed fails; it is skipped otherwise",
    )
    parser.addoption(
        "--beside",
        metavar="REPORT",
        type=Path,
        action="append",
        default=[],
        help="do not run what passed in another run, which wrote this file for --junitxml",
    )
    parser.addoption(
        "--rewrite-notebooks",
        action="store_true",
        help="write what tests of the notebooks see, outputs and pictures, into notebooks/",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes more than cores, since many tests wait; none if files or tests are named.

    Starting processes takes longer than running some files.
    """
    if all(".py" in argument for argument in config.args):
        config.option.dist = "no"
        return 0
    return processors() + 2


def pytest_itemcollected(item: pytest.Item) -> None:
    """Has a test that is a coroutine run in an event loop of its own."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        test = item.obj
        item.obj = functools.wraps(test)(lambda **fixtures: asyncio.run(test(**fixtures)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    other_runs = config.getoption("--beside")
    if other_runs:
        passed = set().union(*map(passed_in, other_runs))
        again = [item for item in items if reported_name(item.nodeid) in passed]
        items[:] = [item for item in items if reported_name(item.nodeid) not in passed]
        config.hook.pytest_deselected(items=again)

    def place(item: pytest.Item) -> int:
        part = item.path.relative_to(folder).parts[0]
        return FIRST.index(part) if part in FIRST else len(FIRST)

    items.sort(key=place)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Holds the usual ports, and has the peers in other languages built, if they are needed."""
    if not hasattr(session.config, "workerinput"):
        stack = contextlib.ExitStack()
        stack.enter_context(usual_ports_held())
        session.config.add_cleanup(stack.close)
    folders = [Path(argument).absolute() for argument in session.config.args]
    needed = Path(__file__).parent / "interop"
    is_controller = bool(session.config.getoption("numprocesses", None))
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if is_controller and reporter and reporter.verbosity <= 0:
        session.config.pluginmanager.register(Folders(reporter))
    if is_controller and any(folder in (needed, *needed.parents) for folder in folders):
        command = [sys.executable, "-m", "tests.peers.servers"]
        building = subprocess.Popen(command, cwd=needed.parents[1], start_new_session=True)
        session.config.add_cleanup(functools.partial(_end, building))


def _end(building: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(building.pid, signal.SIGKILL)
    building.wait()


def pytest_collection_finish() -> None:
    """Takes what was imported out of what the garbage collector looks at.

    Some tests have it collect many times, and each time took a third of a second. The process of
    the stopwatch is started, since some tests count descriptors.
    """
    Stopwatch()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report_together(report, item.path, item.config.getoption("--need-packages"))
    make_encodable(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    report_together(report, collector.path, collector.config.getoption("--need-packages"))
    return report


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(timeouts, "tests.support.timeouts")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for group in GROUPS:
        if item.get_closest_marker(group):
            need(group)


@pytest.fixture
def catch_server() -> Iterator[Server]:
    with serve(Catch) as server:
        yield server
        assert server.errors == []


@pytest.fixture
def echo_server() -> Iterator[ScriptedServer]:
    """Answers extensions with themselves."""
    with ScriptedServer(echo) as server:
        yield server


@pytest.fixture
def echo_environment_server() -> Iterator[Server]:
    """Serves an environment that observes its action."""
    with serve(Echo) as server:
        yield server
        assert server.errors == []
