"""`dm-env-rpc run` on a terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dm_env_rpc_client.server import Server
from tests.cli.terminals import COMMAND, Terminal


@pytest.mark.terminal
def test_the_progress_of_a_run_is_shown_on_a_terminal_and_only_there(
    tmp_path: Path, catch_server: Server
) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.run(f"{COMMAND} run {catch_server.address} -n 3000 > {os.devnull}")
        terminal.waits_for(r"random policy at localhost:\d+ .*\d+/3000")
        terminal.press("C-c")
        terminal.waits_for("interrupted")
        # The shell can be used: it echoes, knows lines, and has its cursor.
        terminal.run(
            "stty -a | tr ' ' '\\n' | grep -E '^-?(echo|icanon|isig);?$' | xargs echo modes:"
        )
        terminal.waits_for("\nmodes: isig icanon echo")
        assert terminal.state() == {"alternate": "0", "cursor": "1"}
