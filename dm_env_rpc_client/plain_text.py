"""Text from peers, made safe for terminals, tables and logs.

A name, a unit or the text of an error can hold escape sequences, which change what a terminal shows
or copies, and marks that reorder what is read. There are three ways out, and one place in each:
`DmEnvRpcClientError.__str__` for errors and tracebacks, `PrintableRecords` for logs, and
`cli/consoles.py` for what commands print. Names, values and attributes of errors stay as they came.
"""

from __future__ import annotations

import difflib
import logging
import traceback
from collections.abc import Iterable


def printable(text: str) -> str:
    """Return text without characters that could control a terminal; line breaks and tabs stay.

    What `str.isprintable` refuses is escaped as in a literal of Python: C0 and C1 controls, DEL,
    marks of direction, separators of lines and paragraphs.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def one_line(text: str, most: int | None = None) -> str:
    """Return printable text in one line, cut off if it has more than `most` characters."""
    line = printable(" ".join(text.split()))
    return line if most is None or len(line) <= most else line[: most - 3] + "..."


class PrintableRecords(logging.Handler):
    """A handler that makes log records printable before other handlers; it writes nothing itself.

    It belongs to the logger of the package, whose records pass it before those of the root do. An
    environment's own exceptions quote what clients sent, so tracebacks are included.
    """

    def handle(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not message.isprintable():
            # One line: a peer must not write what looks like another record.
            record.msg, record.args = one_line(message), ()
        if record.exc_info and not record.exc_text:
            text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            record.exc_text = printable(text)
        return True


# First: what programs add to this logger has to find printable records, too.
logging.getLogger("dm_env_rpc_client").handlers.insert(0, PrintableRecords())


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a question for a misspelt name, such as "; did you mean 'catch'?"; empty for none.

    Args:
      given: the name that there is not.
      known: the names that there are.
    """
    close = difflib.get_close_matches(given, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
