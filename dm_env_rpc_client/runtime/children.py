"""Child processes that end when their parent ends, also when the parent is killed.

A child has a lifeline: a pipe whose write end only the parent holds. A thread of the child
waits until the pipe hangs up, which it does when the parent closes its end or ends in any way.
A process that was forked from the parent holds a copy of that end, so the thread compares the
id of its parent process too, every `CHECK_SECONDS`.

`start` makes such a child, and `Parent.from_start` is its counterpart in the child's program.
A child of `multiprocessing` has a lifeline already, which `Parent.from_multiprocessing` takes.
A command that knows nothing of lifelines runs under a supervisor, see `start_supervised`: this
file as a program, which is why it imports nothing but the standard library.
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
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["Parent", "end", "exit_with", "start", "start_supervised", "supervise"]

CHECK_SECONDS = 1.0
"""How often a child compares the id of its parent process."""

GRACE_SECONDS = 5.0
"""How long a supervised command may take to end after SIGTERM, before SIGKILL."""


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a child whose standard input is its lifeline.

    Args:
      command: a program that calls `Parent.from_start`; gets this process's id as its last
        argument.
      **options: of `subprocess.Popen`, other than `stdin`.
    """
    return subprocess.Popen([*command, str(os.getpid())], stdin=subprocess.PIPE, **options)


def start_supervised(
    command: Sequence[str], folder: str = "", **options: Any
) -> subprocess.Popen[bytes]:
    """Starts a supervisor of any command, in a session of its own.

    When the command ends, or the parent does, the supervisor ends everything in the process
    group of the command, removes the folder, and ends as the command did: with its exit code or
    by its signal. If the command cannot be started, it prints why and exits with 127.

    Args:
      command: the program and its arguments. Its standard input is empty.
      folder: the path of a folder that is removed at the end; empty for none.
      **options: of `subprocess.Popen`, other than `stdin` and `start_new_session`.
    """
    # -I: environment variables such as PYTHONPATH are for the command, not for the supervisor.
    program = [sys.executable, "-I", __file__, folder, *command]
    return start(program, start_new_session=True, **options)


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Closes the lifeline of a child and waits for it; a second time does nothing.

    Args:
      process: what `start` or `start_supervised` returned.
      seconds: how long the child may take to end by itself, before it is killed.
    """
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclasses.dataclass(frozen=True)
class Parent:
    """The parent process, as its child sees it.

    Attributes:
      pid: its process id.
      lifeline: the descriptor of the read end of the pipe.
    """

    pid: int
    lifeline: int

    @classmethod
    def from_start(cls) -> Parent:
        """Returns the process that called `start`.

        Call it once: it takes the process id from `sys.argv`, and the lifeline from standard
        input, which is empty from then on.
        """
        lifeline = os.dup(0)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        return cls(int(sys.argv.pop()), lifeline)

    @classmethod
    def from_multiprocessing(cls) -> Parent:
        """Returns the process that started this one by `multiprocessing`, with "spawn"."""
        parent = multiprocessing.parent_process()
        assert parent is not None
        assert parent.pid is not None
        return cls(parent.pid, parent.sentinel)

    def wait(self) -> None:
        """Blocks until the parent has ended or has closed the lifeline."""
        poll = select.poll()
        poll.register(self.lifeline, select.POLLIN)
        while os.getppid() == self.pid and not poll.poll(CHECK_SECONDS * 1000):
            pass


def exit_with(parent: Parent, grace: float = 0.0) -> None:
    """Makes this process exit, with code 1, after its parent has ended.

    Args:
      parent: the parent.
      grace: how many seconds this process may take to end by itself.
    """

    def exit_when_it_ends() -> None:
        parent.wait()
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=exit_when_it_ends, name="lifeline", daemon=True).start()


def supervise(command: Sequence[str], parent: Parent, grace: float = GRACE_SECONDS) -> int:
    """Runs a command until it or the parent ends, and ends its whole process group.

    Args:
      command: the program and its arguments.
      parent: the parent of this process.
      grace: seconds between SIGTERM and SIGKILL.

    Returns:
      The exit code of the command; negative if a signal ended it.
    """
    # Ctrl-C and the end of a terminal are for the parent, which then ends this process.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end_when_the_parent_ends() -> None:
        parent.wait()
        _signal_group(process, signal.SIGTERM)
        _signal_group(process, signal.SIGCONT)  # One that is stopped gets no other signals.
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)

    threading.Thread(target=end_when_the_parent_ends, name="lifeline", daemon=True).start()
    try:
        return process.wait()
    finally:
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _main(folder: str, *command: str) -> int:
    try:
        return supervise(command, Parent.from_start())
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
        return 127
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _exit_as(code: int) -> None:
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # The command has dumped its own.
    with contextlib.suppress(OSError):  # SIGKILL always has it.
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    _exit_as(_main(*sys.argv[1:-1]))
