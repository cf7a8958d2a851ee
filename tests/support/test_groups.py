"""What is skipped, and what one run of the tests leaves to another."""

from __future__ import annotations

import os
import pty
from pathlib import Path

import pytest

from tests.cli.terminals import Terminal, on_a_terminal
from tests.support import groups


def _no_pty() -> tuple[int, int]:
    raise OSError("out of pty devices")


@pytest.mark.parametrize("group", ["pty", "terminal"])
def test_tests_on_a_terminal_are_skipped_where_none_can_be_opened(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "installed", lambda program: program)
    monkeypatch.setattr(pty, "openpty", _no_pty)
    reason = f"group {group}: no pseudo-terminal can be opened: out of pty devices"
    with pytest.raises(pytest.skip.Exception, match=reason):
        groups.need(group)
    with pytest.raises(pytest.skip.Exception, match=reason):
        on_a_terminal("--version") if group == "pty" else Terminal(tmp_path)


def test_a_pseudo_terminal_that_is_looked_for_is_closed() -> None:
    groups.need("pty")
    before = os.listdir("/proc/self/fd")
    groups.need("pty")
    assert os.listdir("/proc/self/fd") == before
