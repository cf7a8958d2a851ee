"""Real terminals: tmux, with a socket of its own, and what is on their screens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.scripted import settles

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "ready> "
COMMAND = f"{shlex.quote(sys.executable)} -m dm_env_rpc_client"


class Terminal:
    """A shell in a terminal of some size. A context, at whose end both have gone.

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
        self._tmux = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        kept = {
            name: value for name, value in os.environ.items() if name not in ("TMUX", "NO_COLOR")
        }
        variables = {
            **kept,
            "PS1": PROMPT,
            "PYTHONPATH": str(ROOT),
            "LC_ALL": "C.UTF-8",
            "COLORTERM": "truecolor",
        }
        size = ["-x", str(columns), "-y", str(rows)]
        subprocess.run(
            [*self._tmux, "new-session", "-d", *size, "env", *(
                f"{name}={value}" for name, value in (environment or {}).items()
            ), "bash", "--norc", "--noprofile"],
            env=variables,
            check=True,
            timeout=20,
        )  # fmt: skip
        self.waits_for(PROMPT.strip())

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc_info: object) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=True, timeout=20)

    def run(self, command: str) -> None:
        """Types a command line."""
        self._call("send-keys", "-l", command)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Presses keys, by tmux's names."""
        self._call("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Gives the window another size, and waits until the terminal in it has that size."""
        path = self._call("display-message", "-p", "#{pane_tty}").strip()
        terminal = os.open(path, os.O_RDONLY | os.O_NOCTTY)
        try:

            def is_resized() -> bool:
                # tmux puts several changes within a quarter of a second together, and has been
                # seen to leave out the last.
                self._call("resize-window", "-x", str(columns), "-y", str(rows))
                return os.get_terminal_size(terminal) == (columns, rows)

            assert settles(is_resized), os.get_terminal_size(terminal)
        finally:
            os.close(terminal)

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
