"""Child processes that end when their parent ends, even if the parent is killed.

Each child has a lifeline, a pipe whose write end only the parent holds. A thread in the child
waits until the pipe hangs up, which happens when the parent closes its end or exits for any reason.
A process forked from the parent holds a copy of the write end, which would keep the pipe open.
Therefore the parent writes to the pipe before closing it, and the child's thread also checks the
ID of its parent process every `CHECK_SECONDS`.

`start` creates a child with a lifeline, and the child's program calls `Parent.from_start`. A child
created by `multiprocessing` (see `spawned.py`) already has a lifeline, which
`Parent.from_multiprocessing` uses.

A command without a lifeline runs under a supervisor (see `start_supervised`). The supervisor is
this file, run as a program, so the file imports only the standard library. A supervisor starts the
command in a separate session. A `Guard`, which the supervisor forks beforehand, takes over if the
supervisor is killed:

| killed | noticed by | effect |
| --- | --- | --- |
| the client | the supervisor, whose standard input closes | the supervisor ends the process group |
| the supervisor | the guard, whose pipe hangs up | the guard ends it; the client sees the signal |
| the command | the supervisor | the supervisor ends the others and exits as the command did |
| the guard | no process | the supervisor continues without a guard |

The command itself writes its process ID to the guard's pipe, between fork and exec, so the guard
always knows which process to end.

On Linux, the supervisor adopts the processes that lose their parent, including daemons and
processes in sessions of their own, so that it also ends those. A guard does not find them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

CHECK_SECONDS = 1.0
"""The interval, in seconds, at which a child checks the ID of its parent process."""

GRACE_SECONDS = 5.0
"""The time, in seconds, that a supervised command has between SIGTERM and SIGKILL."""

OUTPUT_BYTES = 1 << 20
"""The number of bytes kept at the end of a supervised command's output file."""

_OUTPUT_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_KILL_SECONDS = 1.0
_DISMISSED = b"."


def variables(more: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a new process: those of this process and additional ones.

    If another thread sets or removes a variable at the same time, `dict(os.environ)` raises
    KeyError. For example, pytest changes a variable for each test, even while a fixture's thread
    starts environments.

    Args:
      more: variables to add or replace.
    """
    names = list(os.environ)
    own = {name: value for name in names if (value := os.environ.get(name)) is not None}
    return {**own, **more}


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child whose standard input is its lifeline.

    Args:
      command: a program and its arguments. The program must call `Parent.from_start`; it receives
        the ID of this process as an additional last argument.
      **options: options of `subprocess.Popen`, other than `stdin`.
    """
    return subprocess.Popen([*command, str(os.getpid())], stdin=subprocess.PIPE, **options)


def start_supervised(
    command: Sequence[str], folder: str = "", **options: Any
) -> subprocess.Popen[bytes]:
    """Start a supervisor, in a session of its own, that runs any command.

    When the command or the parent ends, the supervisor ends the process group of the command,
    removes the folder, and ends as the command did, with the same exit code or by the same signal.
    If the supervisor is killed, its `Guard` does the same. If the command cannot be started, the
    supervisor prints the reason and exits with 127. If standard output is a file, the supervisor
    continually frees the disk space of all but the end of the file (see `bound_output`).

    Args:
      command: the program and its arguments. Its standard input is empty.
      folder: the path of a folder to remove at the end, or "" for no folder.
      **options: options of `subprocess.Popen`, other than `stdin` and `start_new_session`.
    """
    # -I: environment variables such as PYTHONPATH are for the command, not for the supervisor.
    program = [sys.executable, "-I", __file__, folder, *command]
    return start(program, start_new_session=True, **options)


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a child and wait for it. A second call does nothing.

    Args:
      process: the result of `start` or `start_supervised`.
      seconds: the time, in seconds, that the child has to end before it is killed.
    """
    if not let_go(process):
        return
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def let_go(process: subprocess.Popen[bytes]) -> bool:
    """End a child without waiting for it.

    Args:
      process: as for `end`.

    Returns:
      Whether this process started the child. If not, this process was forked from the one that
      did, so the child continues, and only the forked copy of the lifeline is closed.
    """
    lifeline = process.stdin
    assert lifeline is not None
    assert isinstance(process.args, list)
    is_own = bool(process.args[-1] == str(os.getpid()))  # See `start`.
    if is_own and not lifeline.closed:
        with contextlib.suppress(OSError):  # The child has ended.
            # It does not hang up as long as a forked process has a copy of it.
            os.write(lifeline.fileno(), _DISMISSED)
    with contextlib.suppress(OSError):
        lifeline.close()
    return is_own


def how_it_ended(code: int) -> str:
    """Return a description of how a process ended, for an error message.

    Args:
      code: the exit code of the process, negative if a signal ended the process.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal such as SIGSTOP, and not by a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:  # It has ended, or the system is not Linux.
        return False


@dataclasses.dataclass(frozen=True)
class Parent:
    """The parent process, from the point of view of its child.

    Attributes:
      pid: its process id.
      lifeline: the descriptor of the read end of the pipe.
    """

    pid: int
    lifeline: int

    @classmethod
    def from_start(cls) -> Parent:
        """Return the parent process, which called `start`.

        Call this only once, because it removes the process ID from `sys.argv` and uses standard
        input as the lifeline, after which standard input is empty.
        """
        lifeline = os.dup(0)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        return cls(int(sys.argv.pop()), lifeline)

    @classmethod
    def from_multiprocessing(cls) -> Parent:
        """Return the process that spawned this one with `multiprocessing`."""
        parent = multiprocessing.parent_process()
        assert parent is not None
        assert parent.pid is not None
        return cls(parent.pid, parent.sentinel)

    def wait(self) -> None:
        """Block until the parent has ended or has released this child."""
        poll = select.poll()
        poll.register(self.lifeline, select.POLLIN)
        while os.getppid() == self.pid and not poll.poll(CHECK_SECONDS * 1000):
            pass


def exit_with(parent: Parent, grace: float = 0.0, end: Callable[[], object] = lambda: None) -> None:
    """Make this process exit with code 1 after its parent has ended.

    Args:
      parent: the parent.
      grace: the time, in seconds, that this process has for an orderly end before it exits.
      end: a function that begins an orderly end, called in another thread.
    """

    def exit_when_it_ends() -> None:
        parent.wait()
        end()
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=exit_when_it_ends, name="lifeline", daemon=True).start()


def leave_signals_to_parent() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP in this child.

    Terminals, service managers and batch systems send these signals to whole groups of processes.
    The parent also receives the signals and ends its children in order. Processes started or
    forked by this child keep the default handling of SIGTERM and SIGHUP.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    numbers = {signal.SIGTERM, signal.SIGHUP}
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP.
            signal.signal(number, _nothing)
            signal.siginterrupt(number, False)
    before = threading.local()

    # Blocked, so that a forked process loses no signal before it has its own handling.

    def block() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def take_again() -> None:
        for number in numbers:
            if signal.getsignal(number) is _nothing:
                signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=take_again)


def _nothing(number: int, frame: object) -> None: ...


class Guard:
    """A process that cleans up if this process is killed, but not after an orderly exit.

    A guard is forked, so create it before this process has threads. The guard has its own process
    group, so that no signal to a group ends both processes.

    Args:
      clean_up: a function called in the guard if this process ends without calling `dismiss`. Its
        argument contains everything that this process sent with `tell`.

    Attributes:
      pid: the process id of the guard.
    """

    def __init__(self, clean_up: Callable[[bytes], object]):
        reading, self._pipe = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._pipe)
            _guard(reading, clean_up)
        os.setpgid(self.pid, self.pid)
        os.close(reading)

    def tell(self, what: bytes) -> None:
        """Send information to the guard. A child can also call this between fork and exec."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, what)

    def dismiss(self) -> None:
        """End the guard because nothing is left to clean up."""
        self.tell(_DISMISSED)
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):  # It was killed, and has been reaped.
            os.waitpid(self.pid, 0)


def _read_all(descriptor: int) -> bytes:
    read = b""
    while part := os.read(descriptor, 4096):
        read += part
    return read


def _guard(reading: int, clean_up: Callable[[bytes], object]) -> NoReturn:
    try:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        told = _read_all(reading)
        if not told.endswith(_DISMISSED):
            clean_up(told)
    except BaseException as error:
        os.write(2, f"could not clean up: {error!r}\n".encode())
    finally:
        os._exit(0)


def supervise(
    command: Sequence[str], parent: Parent, grace: float = GRACE_SECONDS, folder: str = ""
) -> int:
    """Run a command until it or the parent ends, then end its whole process group.

    Args:
      command: the program and its arguments.
      parent: the parent of this process.
      grace: the time between SIGTERM and SIGKILL, in seconds.
      folder: as for `start_supervised`.

    Returns:
      The exit code of the command; negative if a signal ended it.
    """
    # Ctrl-C and the end of a terminal are for the parent, which then ends this process.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def clean_up(told: bytes) -> None:
        if told:
            _end_orphans(int(told), grace)
        _remove(folder)

    guard = Guard(clean_up)
    _adopt_orphans()
    has_ended = threading.Event()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # The child tells its own id, so that there is no moment at which the guard lacks it.
            preexec_fn=lambda: guard.tell(str(os.getpid()).encode()),  # noqa: PLW1509
        )

        def end_when_the_parent_ends() -> None:
            parent.wait()
            _ask_to_end(process.pid)
            if not has_ended.wait(grace):
                _signal_group(process.pid, signal.SIGKILL)

        threading.Thread(target=end_when_the_parent_ends, name="lifeline", daemon=True).start()
        threading.Thread(target=bound_output, name="output", daemon=True).start()
        try:
            process.returncode = _wait_and_reap(process.pid)
            return process.returncode
        finally:
            has_ended.set()
            _signal_group(process.pid, signal.SIGKILL)
            _end_adopted(guard.pid, grace)
    finally:
        _remove(folder)
        guard.dismiss()


def _adopt_orphans() -> None:
    """Make this process the parent of all descendants that lose their own."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(ImportError):  # Some interpreters are built without ctypes.
        import ctypes

        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _wait_and_reap(pid: int) -> int:
    """Wait for a child, reap adopted processes meanwhile, and return the child's exit code."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _end_adopted(guard: int, grace: float) -> None:
    """End the processes that the command has left outside its group, but not the guard."""
    begin = time.monotonic()
    signalled: set[tuple[int, int]] = set()
    while pids := _children() - {guard}:
        seconds = time.monotonic() - begin
        number = signal.SIGTERM if seconds < grace else signal.SIGKILL
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
                if (pid, number) not in signalled:
                    signalled.add((pid, number))
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)
                os.waitpid(pid, os.WNOHANG)
        if seconds > grace + _KILL_SECONDS:
            break
        time.sleep(_LOOK_SECONDS)


def _children() -> set[int]:
    """Return the children of this process, including adopted ones; none if there is no /proc."""
    found = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent == os.getpid():
                found.add(int(name))
    return found


def bound_output() -> None:
    """Continually free the disk space that the standard output file uses, except for its end.

    The file keeps its size, but fallocate(2) makes a hole at its beginning. The function returns
    at once if standard output is not a file, or if the file system does not support holes.
    """
    if not stat.S_ISREG(os.fstat(1).st_mode) or not sys.platform.startswith("linux"):
        return
    import ctypes

    fallocate = ctypes.CDLL(None).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    keep_size, punch_hole = 1, 2
    result = 0
    while result == 0:
        time.sleep(_OUTPUT_SECONDS)
        found = os.fstat(1)
        if found.st_blocks * 512 > 2 * OUTPUT_BYTES:
            result = fallocate(1, keep_size | punch_hole, 0, found.st_size - OUTPUT_BYTES)


def _end_orphans(group: int, grace: float) -> None:
    """End a process group whose supervisor has been killed."""
    _ask_to_end(group)
    deadline = time.monotonic() + grace
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while True:
            if time.monotonic() >= deadline:
                break
            os.killpg(group, 0)
            time.sleep(_LOOK_SECONDS)
    _signal_group(group, signal.SIGKILL)


def _ask_to_end(group: int) -> None:
    _signal_group(group, signal.SIGTERM)
    _signal_group(group, signal.SIGCONT)  # One that is stopped gets no other signals.


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _remove(folder: str) -> None:
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _main(folder: str, *command: str) -> int:
    try:
        return supervise(command, Parent.from_start(), folder=folder)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
        return 127


def _exit_as(code: int) -> None:
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # The command has dumped its own.
    with contextlib.suppress(OSError):  # SIGKILL always has it.
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    _exit_as(_main(*sys.argv[1:-1]))
