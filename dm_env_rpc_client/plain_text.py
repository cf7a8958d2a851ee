"""Escaping of text from peers, so that it is safe for terminals, tables and logs.

A name, a unit or an error message from a peer can contain characters that reorder text, and escape
sequences that change what a terminal shows or copies. This package escapes such text in three
places: `DmEnvRpcClientError.__str__` for errors and tracebacks, `PrintableRecords` for logs, and
`cli/consoles.py` for the output of commands. Names, values and the attributes of errors are not
escaped.
"""

from __future__ import annotations

import difflib
import logging
import traceback
from collections.abc import Iterable


def printable(text: str) -> str:
    """Escape characters that could control a terminal, except line breaks and tabs.

    Everything that `str.isprintable` rejects is escaped as in a Python literal: C0 and C1 controls,
    DEL, direction marks, and line and paragraph separators.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def one_line(text: str, most: int | None = None) -> str:
    """Return printable text on one line, truncated to `most` characters."""
    line = printable(" ".join(text.split()))
    return line if most is None or len(line) <= most else line[: most - 3] + "..."


class PrintableRecords(logging.Handler):
    """A handler that makes log records printable for later handlers and writes nothing itself.

    It is attached to the package's logger, whose handlers run before the root logger's. Tracebacks
    are also made printable, because an environment's exceptions can quote data sent by clients.
    """

    def handle(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not message.isprintable():
            # On one line, so that a peer cannot forge a second record.
            record.msg, record.args = one_line(message), ()
        if record.exc_info and not record.exc_text:
            text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_text = printable(text)
        return True


# First in the list: handlers that programs add to this logger must receive printable records.
logging.getLogger("dm_env_rpc_client").handlers.insert(0, PrintableRecords())


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a suggestion for a misspelt name, such as "; did you mean 'catch'?", or "".

    Args:
      given: the unknown name.
      known: the existing names.
    """
    close = difflib.get_close_matches(given, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
