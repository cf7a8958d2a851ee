"""A process that has ended is sent no signal: its id may be another process's by then."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import connection

import pytest

from tests.support import forks


def _until_killed() -> None:
    time.sleep(60)  # It ends long before, by the signal.


@pytest.mark.parametrize("runs", [True, False])
def test_only_a_process_that_still_runs_is_sent_a_signal(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    kill = os.kill

    def counted(pid: int, number: int) -> None:
        sent.append((pid, number))
        kill(pid, number)

    process = forks.context.Process(target=_until_killed if runs else os.getpid, daemon=True)
    process.start()
    if not runs:
        connection.wait([process.sentinel])
    pid = process.pid
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", counted)
        forks.end(process)
    assert sent == ([(pid, signal.SIGKILL)] if runs else [])
