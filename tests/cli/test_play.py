"""`dm-env-rpc play` in a real terminal: keys, frames, and how the terminal is left behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dm_env_rpc_client.server import Server, serve
from tests.cli.terminals import COMMAND, PROMPT, Terminal
from tests.environments import Broken, Robot
from tests.scripted import ServerProcess, settles

pytestmark = pytest.mark.terminal

SERVE_CATCH = """
import time
from dm_env_rpc_client.server import Catch, serve
with serve(Catch) as server:
    print(server.address, flush=True)
    time.sleep(300)
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path) as opened:
        yield opened


def play(terminal: Terminal, address: str, arguments: str = "") -> None:
    terminal.run(f"{COMMAND} play {address} {arguments}")
    # In real time, later steps may come before the first look at the screen.
    terminal.waits_for(r"episode 1 +step \d")


def is_restored(terminal: Terminal) -> bool:
    """Whether the shell can be used: it echoes, and knows lines."""
    terminal.run("stty -a | tr ' ' '\\n' | grep -E '^-?(echo|icanon|isig);?$' | xargs echo modes:")
    terminal.waits_for("\nmodes: ")
    shown = terminal.screen()
    return "modes: isig icanon echo" in shown and terminal.state() == {
        "alternate": "0",
        "cursor": "1",
    }


def test_keys_change_the_frame_and_quitting_restores_the_terminal(
    terminal: Terminal, catch_server: Server
) -> None:
    terminal.run("echo before")
    play(terminal, catch_server.address, "--create rows=6 --create seed=3")
    first = terminal.waits_for("paddle = 1")
    assert terminal.state() == {"alternate": "1", "cursor": "0"}
    assert "▀▀▀▀" in first
    assert re.search(r"0/←:0 +1/↓:1 +2/→:2", first)
    colours = terminal.colours()
    assert re.search(r"\x1b\[[0-9;]*[34]8;", colours), "frames have colours"

    terminal.press("Left")
    terminal.waits_for(r"step 1 .*\nafter paddle=0")
    after_left = terminal.colours()
    assert after_left != colours

    terminal.press("2", "Space")
    terminal.waits_for(r"step 3 .*\nafter paddle=1")
    terminal.press("Space", "Space")
    over = terminal.waits_for("step 5 .*over: terminated")
    assert re.search(r"reward -?1 +return -?1 +discount 0", over)
    assert "space: next episode" in over
    terminal.press("Space")
    terminal.waits_for("episode 2 +step 0")

    terminal.press("Space", "r")
    terminal.waits_for("episode 3 +step 0 +return 0")
    terminal.press("q")
    terminal.waits_for("3 episodes, 6 steps; return of the last episode: 0")
    assert "before" in terminal.screen()
    assert is_restored(terminal)
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


def test_without_an_address_catch_is_served(terminal: Terminal) -> None:
    play(terminal, "")
    terminal.press("q")
    terminal.waits_for("1 episodes, 0 steps")
    assert is_restored(terminal)


def test_real_time_steps_by_the_clock_and_waits_at_the_end(
    terminal: Terminal, catch_server: Server
) -> None:
    play(terminal, catch_server.address, "--rate 5 --create rows=8 --keys idle=2")
    shown = terminal.waits_for("over: terminated")
    assert "after paddle=2" in shown
    terminal.press("Space")
    terminal.waits_for("episode 2 +step [1-5] ")
    terminal.press("p")
    paused = terminal.waits_for("paused")
    assert "p: continue" in paused
    terminal.press("p")
    terminal.waits_for("episode 2 .*over: terminated")
    terminal.press("q")
    terminal.waits_for("2 episodes, 14 steps")


def test_several_actions_are_set_one_by_one_and_sent_together(
    terminal: Terminal, tmp_path: Path
) -> None:
    with serve(Robot) as server:
        play(terminal, server.address, "--create joints=2 --keys 'w=arm.torque[1]:+=0.25'")
        shown = terminal.waits_for("> arm.grip")
        for part in ("camera.rgb", "camera.depth", "joints.0: 0", "heard: ", "w: arm.torque"):
            assert part in shown
        terminal.press("1", "Tab", "+", "+", "w")
        terminal.waits_for(r"> arm.torque\[0\] = 0.2 ")
        terminal.waits_for(r"  arm.torque\[1\] = 0.25 ")
        terminal.waits_for(r"  arm.grip      = True ")
        terminal.press("t")
        terminal.press("h", "q", "Space", "BSpace", "BSpace", "i", "Enter")
        terminal.waits_for(r"speech        = 'hi'")
        assert "step 0" in terminal.screen(), "nothing was sent so far"
        terminal.press("Space")
        shown = terminal.waits_for("reward 0.45")
        assert "hi HI" in shown or "'hi' 'HI'" in shown
        terminal.press("BTab")
        terminal.waits_for("> arm.grip")
        terminal.press("q")
        terminal.waits_for("1 episodes, 1 steps; return of the last episode: 0.45")


def test_what_the_environment_refuses_is_shown_and_the_game_goes_on(terminal: Terminal) -> None:
    with serve(Broken) as server:
        play(terminal, server.address, "--create at=step")
        terminal.press("Space")
        terminal.waits_for(r"INTERNAL(.|\n)*broken in step")
        terminal.press("r")
        terminal.waits_for("episode 2 +step 0")
        assert "broken" not in terminal.screen()
        terminal.press("q")
        terminal.waits_for("2 episodes, 0 steps")


def test_the_screen_follows_the_window(terminal: Terminal, catch_server: Server) -> None:
    play(terminal, catch_server.address)
    blocks = terminal.screen().count("▀")
    terminal.resize(120, 50)
    assert settles(lambda: terminal.screen().count("▀") > blocks)
    for columns, rows in ((30, 8), (12, 3), (2, 1)):
        terminal.resize(columns, rows)
        terminal.press("Space")
    terminal.resize(90, 30)
    terminal.waits_for("step 3 ")
    assert settles(lambda: terminal.screen().count("▀") == blocks)
    terminal.press("q")
    terminal.waits_for("1 episodes, 3 steps")
    assert is_restored(terminal)


def the_game(terminal: Terminal) -> int:
    """The process that plays in a terminal."""
    shell = terminal.pid()
    (child,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (lambda terminal: terminal.press("C-c"), 130, "error: interrupted"),
        (lambda terminal: os.kill(the_game(terminal), signal.SIGTERM), 143, "error: terminated"),
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
@pytest.mark.parametrize("arguments", ["", "--rate 30"])
def test_the_terminal_is_restored_however_the_game_ends(
    terminal: Terminal,
    catch_server: Server,
    end: Callable[[Terminal], None],
    code: int,
    said: str,
    arguments: str,
) -> None:
    play(terminal, catch_server.address, f"{arguments} --create rows=1000; echo code: $?")
    end(terminal)
    shown = terminal.waits_for(f"code: {code}")
    assert said in shown
    assert "Traceback" not in shown
    assert is_restored(terminal)
    assert settles(lambda: catch_server.world_count == 0)


def test_a_lost_connection_ends_the_game_and_restores_the_terminal(terminal: Terminal) -> None:
    with ServerProcess(SERVE_CATCH) as process:
        play(terminal, process.address, "; echo code: $?")
        process.signal(signal.SIGKILL)
        terminal.press("Space")
        shown = terminal.waits_for("code: 3")
    assert re.search(r"error: .*stream to localhost:\d+ ended", shown.replace("\n", ""))
    assert "Traceback" not in shown
    assert is_restored(terminal)


def test_ctrl_z_lends_the_terminal_to_the_shell(terminal: Terminal, catch_server: Server) -> None:
    play(terminal, catch_server.address)
    terminal.press("C-z")
    terminal.waits_for("Stopped")
    assert is_restored(terminal)
    terminal.run("fg")
    terminal.waits_for("step 0 ")
    terminal.press("Space")
    terminal.waits_for("step 1 ")
    assert terminal.state() == {"alternate": "1", "cursor": "0"}
    terminal.press("q")
    terminal.waits_for("1 episodes, 1 steps")
    assert is_restored(terminal)


def test_a_terminal_that_goes_away_takes_the_game_with_it(
    tmp_path: Path, catch_server: Server
) -> None:
    with Terminal(tmp_path) as terminal:
        play(terminal, catch_server.address)
        game = the_game(terminal)
    assert settles(lambda: not Path(f"/proc/{game}").exists())
    assert settles(lambda: catch_server.world_count == 0)


def test_a_terminal_without_colours_or_characters_shows_frames_too(
    tmp_path: Path, catch_server: Server
) -> None:
    plain = {"NO_COLOR": "1", "TERM": "vt100", "LC_ALL": "C", "PYTHONUTF8": "0"}
    with Terminal(tmp_path, environment=plain) as terminal:
        play(terminal, catch_server.address, "--create seed=1")
        shown = terminal.waits_for("paddle = 1")
        assert "@@@@" in shown
        assert "▀" not in shown
        assert "0/left:0" in shown
        terminal.press("q")
        terminal.waits_for("1 episodes, 0 steps")


def test_a_terminal_that_cannot_move_its_cursor_is_told_apart(
    tmp_path: Path, catch_server: Server
) -> None:
    with Terminal(tmp_path, environment={"TERM": "dumb"}) as terminal:
        terminal.run(f"{COMMAND} play {catch_server.address}; echo code: $?")
        shown = terminal.waits_for("code: 2")
        assert "TERM is 'dumb'" in shown
        assert PROMPT.strip() in shown


def test_the_progress_of_a_run_is_shown_on_a_terminal_and_only_there(
    terminal: Terminal, catch_server: Server
) -> None:
    terminal.run(f"{COMMAND} run {catch_server.address} -n 3000 > {os.devnull}")
    terminal.waits_for(r"random policy at localhost:\d+ .*\d+/3000")
    terminal.press("C-c")
    terminal.waits_for("interrupted")
    assert is_restored(terminal)
