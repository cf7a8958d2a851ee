"""`dm-env-rpc play` in a real terminal: the start, every end, and the terminal after it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("textual")
from dm_env_rpc_client.cli.failures import Terminated, UsageError, ending
from dm_env_rpc_client.cli.options import Server as Reached
from dm_env_rpc_client.cli.playing import play as command
from dm_env_rpc_client.server import Race, Server, serve
from tests.cli.commands import Peers
from tests.cli.terminals import COMMAND, Terminal, on_a_terminal
from tests.launch.processes import children_of
from tests.support.programs import run_python
from tests.support.scripted import settles


def is_restored(terminal: Terminal) -> bool:
    """Whether the shell can be used: it echoes, and knows lines."""
    terminal.run("stty -a | tr ' ' '\\n' | grep -E '^-?(echo|icanon|isig);?$' | xargs echo modes:")
    terminal.waits_for("\nmodes: ")
    on_the_first_screen = terminal.state() == {"alternate": "0", "cursor": "1"}
    return "modes: isig icanon echo" in terminal.screen() and on_the_first_screen


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path) as opened:
        yield opened


@pytest.mark.terminal
def test_a_game_in_a_terminal(terminal: Terminal, catch_server: Server) -> None:
    terminal.run("echo before")
    terminal.run(f"{COMMAND} play {catch_server.address} --create rows=6 --create seed=3")
    terminal.waits_for("episode 1 +step 0")
    terminal.waits_for("paddle = 1")
    # The picture has no glyphs: its pixels are backgrounds of whole characters.
    assert settles(lambda: "48;2;255;255;255m" in terminal.colours())
    assert "▀" not in terminal.screen()
    assert terminal.state() == {"alternate": "1", "cursor": "0"}
    terminal.press("Left")
    terminal.waits_for(r"step 1 .*\nafter paddle=0")
    terminal.resize(120, 40)
    # Ctrl-Z lends the terminal to the shell.
    terminal.press("C-z")
    terminal.waits_for("Stopped")
    terminal.run("fg")
    terminal.waits_for("step 1 ")
    terminal.press("Space")
    terminal.waits_for("step 2 ")
    terminal.press("q")
    terminal.waits_for("0 episodes finished; 2 steps")
    assert "before" in terminal.screen()
    assert is_restored(terminal)
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


@pytest.mark.terminal
def test_a_row_of_a_batch_in_a_terminal(terminal: Terminal, catch_server: Server) -> None:
    batch = "--create num_envs=3 --create 'rows.seed=[1, 2, 3]'"
    terminal.run(f"{COMMAND} play {catch_server.address} {batch} --row 1")
    terminal.waits_for(r", row 1 of 3\nepisode 1 +step 0")
    terminal.waits_for("paddle = 1")
    terminal.press("Left")
    terminal.waits_for(r"step 1 .*\nafter paddle=0")
    terminal.press("q")
    terminal.waits_for("0 episodes finished; 1 step")
    assert is_restored(terminal)
    terminal.run(f"{COMMAND} play {catch_server.address} {batch} --row 3")
    terminal.waits_for("error: there is no row 3: the batch has rows 0 to 2")
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


def the_game(terminal: Terminal) -> int:
    """The process that plays in a terminal."""
    (child,) = children_of(terminal.pid())
    return child


@pytest.mark.terminal
@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (lambda terminal: terminal.press("C-c"), 130, "error: interrupted"),
        (lambda terminal: os.kill(the_game(terminal), signal.SIGTERM), 143, "error: terminated"),
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_the_terminal_is_restored_and_the_world_destroyed_however_the_game_ends(
    terminal: Terminal, end: Callable[[Terminal], None], code: int, said: str
) -> None:
    with serve(Race) as server:
        terminal.run(f"{COMMAND} play {server.address}; echo code: $?")
        terminal.waits_for("waiting: 1 more player")
        end(terminal)
        shown = terminal.waits_for(f"code: {code}")
        assert said in shown
        assert "Traceback" not in shown
        assert is_restored(terminal)
        assert server.world_count == 0


@pytest.mark.terminal
def test_a_terminal_that_goes_away_takes_the_game_with_it(
    tmp_path: Path, catch_server: Server
) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.run(f"{COMMAND} play {catch_server.address}")
        terminal.waits_for("step 0")
        game = the_game(terminal)
    assert settles(lambda: not Path(f"/proc/{game}").exists())
    assert settles(lambda: catch_server.world_count == 0)


@pytest.mark.terminal
def test_the_progress_of_a_run_is_shown_on_a_terminal_and_only_there(
    terminal: Terminal, catch_server: Server
) -> None:
    terminal.run(f"{COMMAND} run {catch_server.address} -n 3000 > {os.devnull}")
    terminal.waits_for(r"random policy at localhost:\d+ .*\d+/3000")
    terminal.press("C-c")
    terminal.waits_for("interrupted")
    assert is_restored(terminal)


def test_a_terminal_that_shows_sixels_gets_images(catch_server: Server) -> None:
    # The answer to the query of Primary Device Attributes, where 4 is sixels. It is there before
    # the query, for which the answer must not take longer than 0.1 s.
    attributes = b"\x1b[?62;4c"
    shown = on_a_terminal("play", catch_server.address, first=attributes, until="\x1bP", keys=b"q")
    assert "\x1bP" in shown


def test_the_terminal_must_have_a_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with pytest.raises(UsageError, match="TERM is 'dumb'"):
        command._check_terminal()


def test_only_play_imports_its_extra_and_names_it_if_it_is_missing() -> None:
    program = """
import sys
import dm_env_rpc_client.cli.app
from dm_env_rpc_client.cli import failures
from dm_env_rpc_client.cli.playing import play
assert "textual" not in sys.modules
for missing in ("textual_image", "PIL", "textual"):
    sys.modules[missing] = None
    try:
        play._check_extra()
    except ModuleNotFoundError as error:
        assert failures.is_told(error)
        print(error)
    for name in [*sys.modules]:
        if name.startswith(missing) or ".playing." in name:
            del sys.modules[name]
"""
    ran = run_python("-c", program)
    assert re.findall(r"play needs the extra: pip install .*\[play\]", ran.stdout) != []
    assert len(ran.stdout.splitlines()) == 3


def test_a_server_is_asked_for_properties_over_a_connection_of_its_own(peers: Peers) -> None:
    assert command._has_properties(Reached(address=peers.catch))
    assert not command._has_properties(Reached(address=peers.hangs_up))


def test_signals_end_an_event_loop_in_order() -> None:
    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in numbers]

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = handlers()
    ended: list[BaseException] = []
    try:
        with ending(ended.append):
            os.kill(os.getpid(), signal.SIGINT)
        assert handlers() == before
        with ending(ended.append):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        assert [type(error) for error in ended] == [KeyboardInterrupt, Terminated]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "the process cleans up"
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
