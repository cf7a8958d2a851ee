from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.testing import ScriptedServer, echo
from tests.environments import Echo
from tests.groups import GROUPS, need, report_together
from tests.reliability.recording import seen

__all__ = ["seen"]

FIRST = (
    "notebook",
    "test_readme.py",
    "compliance",
    "cli",
    "reliability",
    "interop",
    "benchmarks",
    "environment",
    "bridges",
    "transports",
    "testing",
    "fuzz",
    "test_protos.py",
)
"""Where the longest files are. They are begun first, so that none of them is left for the end."""

STDERR = pytest.StashKey[int]()
"""A descriptor of the standard error of pytest itself."""

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
    return len(os.sched_getaffinity(0)) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        part = item.path.relative_to(folder).parts[0]
        return FIRST.index(part) if part in FIRST else len(FIRST)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Takes what was imported out of what the garbage collector looks at.

    Some tests have it collect many times, and each time took a third of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    report_together(report)
    return report


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # Not captured yet.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends the process if pytest-timeout could not end the test, with all threads' tracebacks."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0]) if marker else float(item.config.getini("timeout"))
    if seconds:
        faulthandler.dump_traceback_later(
            2 * seconds + 30, exit=True, file=item.config.stash[STDERR]
        )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Failures:
    """Names a failed test at once: a run that is ended from outside has no summary."""

    def __init__(self, reporter: pytest.TerminalReporter):
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._reporter.verbosity <= 0:
            self._reporter.ensure_newline()
            self._reporter.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Failures(reporter))


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
