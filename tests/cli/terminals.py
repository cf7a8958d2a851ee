"""Real terminals: tmux, with a socket of its own, or alone; and what is on their screens."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import termios
from multiprocessing import connection
from pathlib import Path

from tests.cli import commands
from tests.support import forks, groups
from tests.support.scripted import settles
from tests.support.stopwatch import patience

PROMPT = "ready> "
COMMAND = shlex.join(commands.COMMAND)


class Terminal:
    """A shell in a terminal of some size. A context, at whose end both have gone.

    Without tmux or pseudo-terminals, the test is skipped.

    Args:
      folder: for the socket.
      columns: of the window.
      rows: of the window.
      environment: variables beside those of the test.
    """

    def __init__(
        self,
        folder: Path,
        columns: int = 90,
        rows: int = 30,
        environment: dict[str, str] | None = None,
    ):
        groups.need("terminal")
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        kept = {
            name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR")
        }
        own = {"PS1": PROMPT, "PYTHONPATH": commands.ROOT, "LC_ALL": "C.UTF-8"}
        variables = {**kept, **own, "COLORTERM": "truecolor", **(environment or {})}
        size = ["-x", str(columns), "-y", str(rows)]
        command = [*self._tmux, "new-session", "-d", *size, "bash", "--norc", "--noprofile"]
        subprocess.run(command, env=variables, check=True, timeout=patience(20))
        self.waits_for(PROMPT.strip())

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=True, timeout=patience(20))

    def run(self, command: str) -> None:
        """Types a command line."""
        self._call("send-keys", "-l", command)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Presses keys, by tmux's names."""
        self._call("send-keys", *keys)

    def screen(self) -> str:
        """What can be read on the screen."""
        return self._call("capture-pane", "-p")

    def colours(self) -> str:
        """The screen with its colours, as escape sequences."""
        return self._call("capture-pane", "-p", "-e")

    def waits_for(self, text: str, seconds: float = 20.0) -> str:
        """Returns the screen once it shows a text, or matches a pattern; fails if it never does."""
        found = settles(lambda: re.search(text, self.screen()) is not None, seconds)
        assert found, f"never saw {text!r} but:\n{self.screen()}"
        return self.screen()

    def pid(self) -> int:
        """The process of the shell."""
        return int(self._call("display-message", "-p", "#{pane_pid}"))

    def state(self) -> dict[str, str]:
        """Whether the other screen is shown, and whether there is a cursor."""
        shown = self._call("display-message", "-p", "#{alternate_on} #{cursor_flag}").split()
        return dict(zip(("alternate", "cursor"), shown, strict=True))

    def _call(self, *arguments: str) -> str:
        return subprocess.run(
            [*self._tmux, *arguments], capture_output=True, text=True, check=True, timeout=20
        ).stdout


def on_a_terminal(
    *arguments: str,
    until: str = "",
    keys: bytes = b"",
    environment: dict[str, str] | None = None,
) -> str:
    """Runs a command on a terminal of its own and returns all that it wrote there.

    Without pseudo-terminals, the test is skipped.

    Args:
      *arguments: of the command.
      until: the text after which `keys` are typed.
      keys: what is typed.
      environment: variables beside those of the test.
    """
    groups.need("pty")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, 400, 4000, 1000))
    written = b""
    try:
        with forks.running_command(
            *arguments,
            cwd=None,
            environment={**os.environ, "TERM": "xterm-256color", **(environment or {})},
            streams=[os.ttyname(theirs)] * 3,
        ) as process:
            while True:
                # What it has written last is there when it has ended, or earlier.
                has_ended = connection.wait([process.sentinel], 0)
                while select.select([ours], [], [], 0)[0]:
                    written += os.read(ours, 1 << 16)
                if until and until in written.decode(errors="replace"):
                    os.write(ours, keys)
                    until = ""
                if has_ended:
                    break
                found = connection.wait([process.sentinel, ours], forks.COMMAND_SECONDS)
                assert found, f"it has not ended, and has written last {written[-1000:]!r}"
            code = forks.exit_code(process)
    finally:
        os.close(theirs)
        os.close(ours)
    assert code in range(4), (code, written)
    return written.decode()
