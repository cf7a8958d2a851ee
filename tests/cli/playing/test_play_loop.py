"""Keys from a terminal and frames to it, with a pseudo-terminal in the place of the window."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
import typer.testing
from dm_env import specs

from dm_env_rpc_client.cli import play as command
from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.cli.failures import Terminated, UsageError
from dm_env_rpc_client.cli.playing.keyboard import HangUp, Keyboard, decode
from dm_env_rpc_client.cli.playing.screen import Screen, View, describe
from dm_env_rpc_client.server import Catch, serve
from tests.environments import Broken, Robot
from tests.scripted import settles


@pytest.mark.parametrize(
    ("text", "keys", "rest"),
    [
        ("", [], ""),
        ("aA9 ", ["a", "A", "9", "space"], ""),
        ("\r\n\t\x7f\x08", ["enter", "enter", "tab", "backspace", "backspace"], ""),
        ("\x1b[A\x1b[B\x1b[C\x1b[D", ["up", "down", "right", "left"], ""),
        ("\x1bOA\x1bOD", ["up", "left"], ""),
        ("\x1b[Z\x1b[1;5C", ["backtab", "right"], ""),
        ("\x1b[3~\x1b[200~x", ["x"], ""),
        ("\x1bx", ["escape", "x"], ""),
        ("\x1b\x1b[A", ["escape", "up"], ""),
        ("a\x1b", ["a"], "\x1b"),
        ("a\x1b[", ["a"], "\x1b["),
        ("a\x1b[1;", ["a"], "\x1b[1;"),
        ("é漢", ["é", "漢"], ""),
        ("\x00\x01\x1f", [], ""),
    ],
)
def test_keys_are_told_apart(text: str, keys: list[str], rest: str) -> None:
    assert decode(text) == (keys, rest)


class Window:
    """The other end of a pseudo-terminal: somebody who types and reads."""

    def __init__(self, descriptor: int, other_end: int):
        self._descriptor = descriptor
        self._other_end = other_end
        self._seen = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Makes the terminal stdin and stdout, which pytest has taken for itself."""
        captured = sys.stdin, sys.stdout
        with (
            open(os.dup(self._other_end), encoding="utf-8") as stdin,
            open(os.dup(self._other_end), "w", encoding="utf-8") as stdout,
        ):
            sys.stdin, sys.stdout = stdin, stdout
            try:
                yield
            finally:
                sys.stdin, sys.stdout = captured

    def type(self, text: str | bytes) -> None:
        os.write(self._descriptor, text.encode() if isinstance(text, str) else text)

    def sees(self, pattern: str, seconds: float = 20.0) -> None:
        """Waits until something is seen, and forgets all that came before it."""
        assert settles(lambda: re.search(pattern, self._seen) is not None, seconds), self._seen[
            -3000:
        ]
        found = re.search(pattern, self._seen)
        assert found is not None
        self._seen = self._seen[found.end() :]

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._descriptor, 65536):
                # Frames are written in pieces; what moves the cursor is no part of them.
                text = data.decode(errors="replace")
                self._seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._other_end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def join(self) -> None:
        self._reader.join(10)


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Iterator[Window]:
    """A terminal of 90 columns and 30 rows."""
    mine, its = pty.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    before = termios.tcgetattr(its)
    opened = Window(mine, its)
    opened.resize(30, 90)
    yield opened
    assert termios.tcgetattr(its) == before, "the modes of the terminal are restored"
    os.close(its)
    opened.join()
    os.close(mine)


@contextlib.contextmanager
def somebody(window: Window, act: Callable[[], None]) -> Iterator[None]:
    """Acts in a thread, while this one plays; what fails there fails here."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failures.append(error)
            # The game would wait for ever.
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with window.attached():
            yield
    except KeyboardInterrupt:
        if not failures:
            raise
    thread.join(60)
    if failures:
        raise failures[0]


def play(address: str, **options: Any) -> None:
    command.play(address=address, timeout=30.0, **options)


def test_a_game_from_beginning_to_end(window: Window) -> None:
    def act() -> None:
        window.sees("step 0 .*paddle = 1")
        window.type("\x1b[D")
        window.sees("step 1 .*after paddle=0")
        window.type("2 ")
        window.sees("step 3 .*after paddle=1")
        window.type("p")
        window.type("\x1b")
        window.type("r")
        window.sees("episode 2 .*step 0 ")
        window.type("q")

    with serve(Catch) as server, somebody(window, act):
        play(server.address, create=["rows=20"])
    window.sees("2 episodes, 3 steps; return of the last episode: 0")


def test_several_controls_and_texts(window: Window) -> None:
    def act() -> None:
        window.sees("> arm.grip .*w: arm.torque")
        window.type("1w\tt")
        window.sees("speech .*'_'")
        window.type("hq i\x7f\x1b")
        window.sees("speech .*'hq '")
        window.type("\x1b[Z\r")
        window.sees("reward 0.25")
        window.type("q")

    with serve(Robot) as server, somebody(window, act):
        play(server.address, keys=["w=arm.torque[2]:+=0.25"])


def test_real_time_and_pauses(window: Window) -> None:
    def act() -> None:
        window.sees("step 2 .*after paddle=2")
        window.type("p")
        window.sees("paused")
        window.type("p")
        window.sees("over: terminated")
        window.type("r")
        window.sees("episode 2 ")
        window.type("q")

    with serve(Catch) as server, somebody(window, act):
        play(server.address, create=["rows=8"], rate=20.0, keys=["idle=2"])


def test_refusals_are_shown(window: Window) -> None:
    def act() -> None:
        window.sees("step 0")
        window.type(" ")
        window.sees("broken in step")
        window.type("q")

    with serve(Broken) as server, somebody(window, act):
        play(server.address, create=["at=step"])


def test_the_window_changes(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, int]] = []
    draw = Screen.draw

    def recording(self: Screen, view: View, width: int, height: int) -> None:
        draw(self, view, width, height)
        drawn.append((height, width))

    def act() -> None:
        window.sees("step 0")
        for rows, columns in ((50, 120), (3, 20), (1, 1), (30, 90)):
            window.resize(rows, columns)
            drawn.clear()
            os.kill(os.getpid(), signal.SIGWINCH)
            assert settles(lambda size=(rows, columns): size in drawn, 20)  # type: ignore[misc]
        window.sees("space: step")
        window.type("q")

    monkeypatch.setattr(Screen, "draw", recording)
    with serve(Robot) as server, somebody(window, act):
        play(server.address)


class Changing(dm_env.Environment):
    """Has another action after each reset."""

    def __init__(self) -> None:
        self._resets = 0

    def action_spec(self) -> dict[str, specs.Array]:
        return {"a": specs.DiscreteArray(3)}

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"o": specs.Array((), np.int32)}

    def reset(self) -> dm_env.TimeStep:
        self._resets += 1
        return dm_env.restart({"o": np.int32(self._resets)})

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.transition(0.0, {"o": np.int32(0)})


def test_a_reset_may_change_the_actions(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    from dm_env_rpc_client import DmEnvAdaptor

    original = DmEnvAdaptor.reset

    def reset(self: DmEnvAdaptor, settings: Any = None) -> dm_env.TimeStep:
        timestep = original(self, settings)
        self.action_spec = lambda: {"a": specs.DiscreteArray(2), "b": specs.DiscreteArray(2)}  # type: ignore[method-assign]
        return timestep

    monkeypatch.setattr(DmEnvAdaptor, "reset", reset)

    def act() -> None:
        window.sees("> a = 0 (.|\n)*  b = 0")
        window.type("q")

    with serve(Changing) as server, somebody(window, act):
        play(server.address)


def test_characters_that_come_in_pieces(window: Window) -> None:
    with window.attached():
        keyboard = Keyboard(lambda: None, lambda: None)
        with keyboard:
            window.type("x")
            assert keyboard.keys(5.0) == ["x"]
            assert keyboard.keys(0.0) == []
            window.type("é".encode()[:1])
            assert keyboard.keys(5.0) == []
            window.type("é".encode()[1:])
            assert keyboard.keys(5.0) == ["é"]
            window.type("\x1b[")
            assert keyboard.keys(5.0) == []
            window.type("A")
            assert keyboard.keys(5.0) == ["up"]


def test_a_terminal_that_has_gone(
    window: Window, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ignored: list[int] = []
    monkeypatch.setattr(
        "dm_env_rpc_client.cli.playing.keyboard.ignore_signals_to_end", lambda: ignored.append(1)
    )
    with window.attached(), Keyboard(lambda: None, lambda: None) as keyboard:
        (tmp_path / "empty").touch()
        with open(tmp_path / "empty") as empty:
            monkeypatch.setattr(keyboard, "_terminal", empty.fileno())
            with pytest.raises(HangUp):
                keyboard.keys(1.0)
        with monkeypatch.context() as patched:
            patched.setattr(os, "read", _fails)
            monkeypatch.setattr(keyboard, "_terminal", sys.stdin.fileno())
            with pytest.raises(HangUp):
                keyboard._read()
    assert ignored == [1, 1]
    assert issubclass(HangUp, Terminated)


def _fails(*args: object) -> bytes:
    raise OSError("input/output error")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.float32(0.1), "0.1"),
        (np.int64(-3), "-3"),
        (np.bool_(True), "True"),
        ("two\nlines \x1b[2J", "two lines \ufffd[2J"),
        (np.array(["a", "b"], object), "['a' 'b']"),
        (np.array([0.5, -1.0]), "[ 0.5 -1. ]"),
        (np.arange(100), "int64[100], 0 to 99, mean 49.5"),
        (np.zeros((3, 4), bool), "bool[3, 4]"),
        (np.zeros((0, 9)), "[]"),
    ],
)
def test_observations_that_are_no_pictures(value: Any, shown: str) -> None:
    assert describe(value) == shown


def test_there_must_be_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    result = typer.testing.CliRunner().invoke(app, ["play", "localhost:1"])
    assert result.exit_code == 2
    assert "needs a terminal, but the standard input is not one" in result.stderr
    monkeypatch.setitem(sys.modules, "termios", None)
    with pytest.raises(UsageError, match="POSIX"):
        command._terminal()


def test_a_terminal_must_move_its_cursor(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with window.attached(), pytest.raises(UsageError, match="TERM is 'dumb'"):
        command._terminal()


def test_rates_that_are_none() -> None:
    for rate in ("0", "-1", "nan", "2000"):
        result = typer.testing.CliRunner().invoke(app, ["play", "--rate", rate])
        assert result.exit_code == 2
        assert "steps per second" in result.stderr
