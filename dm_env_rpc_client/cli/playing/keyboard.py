"""Keys of a terminal, one by one, and its modes, which are always restored at the end.

A terminal sends characters. The name of most keys is their character; the names of the others
are in `NAMED_KEYS`.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable
from types import FrameType

from dm_env_rpc_client.cli.failures import Terminated, ignore_signals_to_end

__all__ = ["NAMED_KEYS", "HangUp", "Keyboard", "decode"]

_NAMES = {
    " ": "space",
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
}

# After "\x1b[", or "\x1bO" if the terminal is in application mode.
_FINAL = {"A": "up", "B": "down", "C": "right", "D": "left", "Z": "backtab"}

NAMED_KEYS = frozenset([*_NAMES.values(), *_FINAL.values(), "escape"])

_ESCAPE_SECONDS = 0.05
"""How long after an escape the rest of a sequence may come; the escape key sends no rest."""


class HangUp(Terminated):
    """The terminal was closed."""


def decode(text: str) -> tuple[list[str], str]:
    """Splits the characters of a terminal into keys; keys without a name are left out.

    Returns:
      The keys, and the characters at the end that may be the beginning of another key.
    """
    keys = []
    position = 0
    while position < len(text):
        character = text[position]
        if character != "\x1b":
            key = _NAMES.get(character, character)
            if key.isprintable():
                keys.append(key)
            position += 1
            continue
        if position + 1 == len(text):
            return keys, text[position:]
        if text[position + 1] not in "[O":
            keys.append("escape")
            position += 1
            continue
        # A sequence ends with the first character from @ on.
        end = position + 2
        while end < len(text) and not "@" <= text[end] <= "~":
            end += 1
        if end == len(text):
            return keys, text[position:]
        if text[end] in _FINAL:
            keys.append(_FINAL[text[end]])
        position = end + 1
    return keys, ""


class Keyboard:
    """The keys of the terminal at stdin. A context: inside it, keys come without Enter.

    Ctrl-Z restores the terminal and stops the process; both are undone when it continues.

    Args:
      on_stop: called before the process is stopped by Ctrl-Z.
      on_resume: called when it continues.
    """

    def __init__(self, on_stop: Callable[[], None], on_resume: Callable[[], None]):
        self._on_stop = on_stop
        self._on_resume = on_resume
        self._terminal = sys.stdin.fileno()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._rest = ""
        self._context = contextlib.ExitStack()

    def __enter__(self) -> Keyboard:
        with contextlib.ExitStack() as context:
            self._modes = termios.tcgetattr(self._terminal)
            context.callback(self._restore_modes)
            tty.setcbreak(self._terminal)
            # A signal during the wait for keys ends the wait by a byte in this pipe.
            self._signals, waker = os.pipe()
            for descriptor in (self._signals, waker):
                os.set_blocking(descriptor, False)
                context.callback(os.close, descriptor)
            previous = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
            context.callback(signal.set_wakeup_fd, previous)
            for number, handler in (
                (signal.SIGTSTP, self._stop),
                (signal.SIGWINCH, _wake_up),
            ):
                context.callback(signal.signal, number, signal.signal(number, handler))
            self._context = context.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._context.close()

    def keys(self, timeout: float | None) -> list[str]:
        """Waits for keys.

        Args:
          timeout: seconds to wait; None for no limit.

        Returns:
          The pressed keys. Empty after the timeout, and also after something else has
          happened, such as a resize of the window.

        Raises:
          HangUp: the terminal was closed.
        """
        if self._rest:
            timeout = _ESCAPE_SECONDS
        ready, _, _ = select.select([self._terminal, self._signals], [], [], timeout)
        if self._signals in ready:
            os.read(self._signals, 4096)
        if self._terminal in ready:
            keys, self._rest = decode(self._rest + self._read())
            return keys
        if self._rest and not ready:
            self._rest = ""
            return ["escape"]
        return []

    def _read(self) -> str:
        try:
            data = os.read(self._terminal, 4096)
        except OSError:
            data = b""
        if not data:
            # A signal about it may follow, and must not interrupt the cleanup.
            ignore_signals_to_end()
            raise HangUp
        return self._decoder.decode(data)

    def _restore_modes(self) -> None:
        with contextlib.suppress(termios.error):  # It was closed.
            termios.tcsetattr(self._terminal, termios.TCSAFLUSH, self._modes)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._on_stop()
        self._restore_modes()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # The process was stopped here, and continues.
        signal.signal(signal.SIGTSTP, handler)
        tty.setcbreak(self._terminal)
        self._on_resume()


def _wake_up(number: int, frame: FrameType | None) -> None:
    """Does nothing: Python has written to the pipe, so the screen is drawn again."""
