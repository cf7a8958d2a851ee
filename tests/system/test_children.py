"""Children of commands and of multiprocessing end with their parents."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.children import Parent
from dm_env_rpc_client.system.spawned import SpawnedChild
from tests.launch.processes import children_of
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch

ROOT = Path(__file__).parents[2]

# Children and commands print C, and would then go on for longer than any test.

CHILD = """
import os, time
from dm_env_rpc_client.system import children
children.exit_with(children.Parent.from_start())
os.write(1, b"C")
time.sleep(300)  # Until it is ended.
"""

COMMAND = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"])
os.write(1, b"C")
time.sleep(300)  # Until it is ended.
"""


def spawned() -> None:
    """A child of multiprocessing."""
    children.exit_with(Parent.from_multiprocessing())
    os.write(1, b"C")
    threading.Event().wait()


# Parents.

STARTING = f"children.start([sys.executable, '-c', {CHILD!r}])"

SUPERVISING = f"children.start_supervised([sys.executable, '-c', {COMMAND!r}])"

# multiprocessing has a process of its own, which holds the output until no process holds a
# pipe to it: a fork must not.
SPAWNING = """
from multiprocessing import resource_tracker
from tests.system.test_children import spawned
pipe = resource_tracker.getfd()
os.register_at_fork(after_in_child=lambda: os.close(pipe))
multiprocessing.get_context("spawn").Process(target=spawned, daemon=True).start()
"""

# A process forked later holds a copy of the lifeline, and goes on until the test ends. It does
# not hold the output.
FORKING = """
if os.fork() == 0:
    os.close(1)
    os.read(0, 1)
    os._exit(0)
"""


@contextlib.contextmanager
def parent_of(*programs: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a parent, which prints P, until it and its child are ready."""
    program = "import multiprocessing, os, sys, time\n"
    program += "from dm_env_rpc_client.system import children\n"
    # It is there until it is ended.
    program += "\n".join([*programs, "os.write(1, b'P')", "time.sleep(300)"])
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert sorted(read(process, 2)) == sorted(b"CP")
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[bytes], count: int = -1) -> bytes:
    """Reads what a process and its descendants print, by default until all have ended."""
    assert process.stdout is not None
    return process.stdout.read(count)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("then", ["", FORKING], ids=["alone", "with-a-fork"])
@pytest.mark.parametrize(
    "starting", [STARTING, SUPERVISING, SPAWNING], ids=["started", "supervised", "spawned"]
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(starting: str, then: str, number: signal.Signals) -> None:
    with parent_of(starting, then) as parent:
        parent.send_signal(number)
        assert parent.wait() == -number
        assert read(parent) == b""


@pytest.mark.timeout(60)
def test_a_child_may_take_some_time_to_end_by_itself() -> None:
    program = """
import os
from dm_env_rpc_client.system import children
parent = children.Parent.from_start()
children.exit_with(parent, grace=300.0)
os.write(1, b"C")
parent.wait()
os._exit(5)
"""
    with children.start([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert read(process, 1) == b"C"
        children.end(process, 60.0)
        children.end(process, 0.0)
    assert process.returncode == 5


@pytest.mark.timeout(60)
def test_a_supervisor_exits_as_its_command_does() -> None:
    process = children.start_supervised([sys.executable, "-c", "raise SystemExit(7)"])
    assert process.wait() == 7
    children.end(process, 0.0)


ENGINE = """
import subprocess, sys, time
engine = '''
import os, signal, sys, time
ends = lambda *_: (os.write(1, b"E"), os._exit(0))
signal.signal(signal.SIGTERM, ends if sys.argv[1] == "ends" else signal.SIG_IGN)
os.write(1, b"C")
time.sleep(300)  # Until it is ended.
'''
subprocess.Popen([sys.executable, "-c", engine, sys.argv[1]], start_new_session=True)
if sys.argv[2] == "waits":
    time.sleep(300)  # Until it is ended.
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("engine", ["ends", "stays"])
def test_an_engine_in_a_session_of_its_own_ends_with_its_launcher(engine: str) -> None:
    supervisor = """
import sys
from dm_env_rpc_client.system import children
grace = 20.0 if "ends" in sys.argv else 0.0
sys.exit(children.supervise(sys.argv[1:-1], children.Parent.from_start(), grace))
"""
    launcher = [sys.executable, "-c", ENGINE, engine, "waits"]
    with children.start(
        [sys.executable, "-c", supervisor, *launcher], stdout=subprocess.PIPE
    ) as process:
        assert read(process, 1) == b"C"
        children.end(process, 60.0)
        assert read(process) == (b"E" if engine == "ends" else b"")


@pytest.mark.timeout(60)
def test_an_engine_that_daemonises_ends_with_its_command() -> None:
    command = [sys.executable, "-c", ENGINE, "ends", "leaves"]
    with children.start_supervised(command, stdout=subprocess.PIPE) as process:
        assert read(process) in (b"CE", b"")
        assert process.wait() == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_killed_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, "-c", COMMAND]
    with children.start_supervised(command, str(folder), stdout=subprocess.PIPE) as process:
        assert read(process, 1) == b"C"
        process.send_signal(number)
        assert read(process) == b""
        assert not folder.exists()
    assert process.returncode == -number


GUARDED = """
import os, sys, time
from dm_env_rpc_client.system.children import Guard
guard = Guard(lambda told: os.write(1, b"cleaned up after " + told))
for part in sys.argv[1:]:
    guard.tell(part.encode())
os.write(1, b"C")
"""


KILLED_GUARD = """
os.kill(guard.pid, 9)
os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOWAIT)
guard.tell(b"more")
guard.dismiss()
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("end", "printed"),
    [
        ("os.kill(os.getpid(), 9)", b"cleaned up after a log"),
        ("os.killpg(os.getpgid(0), 9)", b"cleaned up after a log"),
        ("os._exit(0)", b"cleaned up after a log"),
        ("guard.dismiss()", b""),
        ("guard.dismiss(); os.kill(os.getpid(), 9)", b""),
        (KILLED_GUARD, b""),
    ],
)
def test_a_guard_cleans_up_unless_it_was_dismissed(end: str, printed: bytes) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", GUARDED + end, "a ", "log"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert read(process) == b"C" + printed


@pytest.mark.timeout(60)
def test_what_cannot_be_pickled_leaves_no_pipe() -> None:
    before = len(os.listdir("/proc/self/fd"))
    errors = []  # Their tracebacks keep what is not closed.
    for _ in range(8):
        with pytest.raises(Exception, match=r"pickle|local") as raised:
            SpawnedChild(print, lambda: None, name="unpicklable")
        errors.append(raised)
    # multiprocessing's own process has one pipe.
    assert len(os.listdir("/proc/self/fd")) <= before + 2 < before + len(errors)


def test_a_parent_that_ended_before_its_child_looked() -> None:
    lifeline, held = os.pipe()
    begin = Stopwatch()
    # As after the end of a parent: the parent of this process is another.
    Parent(pid=os.getpid(), lifeline=lifeline).wait()
    assert begin.within(10)
    os.close(lifeline)
    os.close(held)


def test_what_a_command_leaves_behind_is_reaped_meanwhile() -> None:
    command = """
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
        os._exit(0)
    os.wait()
os.write(1, b"C")
time.sleep(300)  # Until it is ended.
"""
    with children.start_supervised(
        [sys.executable, "-c", command], stdout=subprocess.PIPE
    ) as process:
        assert read(process, 1) == b"C"
        # The command and the guard.
        assert settles(lambda: len(children_of(process.pid)) == 2, 20)
        children.end(process, 60.0)


def test_environment_variables_are_the_commands(tmp_path: Path) -> None:
    (tmp_path / "select.py").write_text("raise RuntimeError('imported by the supervisor')")
    (tmp_path / "given.py").write_text("print('imported by the command')")
    with children.start_supervised(
        [sys.executable, "-c", "import given"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as process:
        assert read(process) == b"imported by the command\n"
        assert process.wait() == 0
        children.end(process, 0.0)
