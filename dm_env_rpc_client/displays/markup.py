"""Small pieces of HTML.

Names and texts come from servers, so everything that is put in is escaped, and bounded.
Colours are those of the page, so that both light and dark themes are legible.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["MAX_ROWS", "MAX_TEXT", "escape", "preformatted", "section", "shorten", "table"]

MAX_TEXT = 2000
"""Characters of one text; what is longer is cut."""

MAX_ROWS = 200
"""Rows of one table."""

_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0;border:none"
_HEAD = f"{_CELL};font-weight:normal;opacity:0.6"


def shorten(text: str, length: int = MAX_TEXT) -> str:
    """Returns `text`, cut to `length` characters, with an ellipsis where it was longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def escape(value: object, length: int = MAX_TEXT) -> str:
    """Returns the text of `value` as it stands in HTML, in an element or an attribute."""
    # A lone surrogate cannot be sent to a browser.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return html.escape(shorten(text, length), quote=True)


def preformatted(text: str) -> str:
    """Returns text whose line breaks and spaces stay as they are; escapes it."""
    style = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;line-height:1.3"
    return f'<span style="{style}">{escape(text)}</span>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table.

    Args:
      columns: the titles, which are escaped here.
      rows: cells as HTML, escaped by the caller. Those beyond `MAX_ROWS` are counted only.
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
    """Returns pieces of HTML below a title, which is escaped here."""
    return (
        f'<div style="margin:2px 0 8px"><div style="font-weight:600">{escape(title)}</div>'
        f"{''.join(bodies)}</div>"
    )
