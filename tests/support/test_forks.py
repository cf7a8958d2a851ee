"""Processes of tests: which of them are sent a signal, and what they import."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import connection
from pathlib import Path

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


def test_what_a_command_imports_is_there_once(tmp_path: Path) -> None:
    """Modules of the command are imported anew; two of the room `client` would not be equal."""
    (tmp_path / "asking.py").write_text(
        "import sys\n"
        "from dm_env_rpc_client.client.connect_options import DefaultSeconds\n"
        "from dm_env_rpc_client.launch import specs\n"
        "sys.exit('one' if specs.DefaultSeconds is DefaultSeconds else 'two')\n"
    )
    ended = forks.run_command("serve", "asking:make", cwd=tmp_path)
    assert "SystemExit: one" in ended.stderr
