"""Small pieces of HTML.

Names and texts come from servers, so they are escaped and limited in length. Colours are taken
from the page, so that light and dark themes are legible.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

MAX_TEXT = 2000
"""The maximum length of a text; longer ones are truncated."""

MAX_ROWS = 200
"""The maximum number of rows of a table."""

_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0;border:none"
_HEAD = f"{_CELL};font-weight:normal;opacity:0.6"


def shorten(text: str, length: int = MAX_TEXT) -> str:
    """Returns `text`, truncated to `length` characters with an ellipsis if it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def escape(value: object, length: int = MAX_TEXT) -> str:
    """Returns the text of `value`, escaped for HTML elements and attributes."""
    # Lone surrogates are replaced: they cannot be sent to a browser.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return html.escape(shorten(text, length), quote=True)


def preformatted(text: str) -> str:
    """Returns text as HTML that preserves line breaks and spaces; escapes it."""
    style = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;line-height:1.3"
    return f'<span style="{style}">{escape(text)}</span>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table.

    Args:
      columns: the titles; they are escaped here.
      rows: cells as HTML, escaped by the caller. Of rows beyond `MAX_ROWS` only the number
        is shown.
    """
    head = "".join(f'<th style="{_HEAD}">{escape(column)}</th>' for column in columns)
    rows = list(rows)
    lines = [
        '<tr style="background:none">'
        + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row)
        + "</tr>"
        for row in rows[:MAX_ROWS]
    ]
    if len(rows) > MAX_ROWS:
        lines.append(
            f'<tr><td style="{_CELL}" colspan="{len(columns)}">'
            f"… and {len(rows) - MAX_ROWS} more</td></tr>"
        )
    return (
        '<table style="border-collapse:collapse;margin:0;font-size:inherit">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def section(title: str, *bodies: str) -> str:
    """Returns HTML below a title; the title is escaped here."""
    return (
        f'<div style="margin:2px 0 8px"><div style="font-weight:600">{escape(title)}</div>'
        f"{''.join(bodies)}</div>"
    )
