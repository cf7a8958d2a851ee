"""Text of servers, made fit for a terminal."""

from __future__ import annotations

__all__ = ["one_line", "printable"]


def printable(text: str) -> str:
    """Returns text without what would control a terminal; lines and tabs stay."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def one_line(text: str, most: int | None = None) -> str:
    """Returns printable text in a line, cut off where it has more than `most` characters."""
    line = printable(" ".join(text.split()))
    return line if most is None or len(line) <= most else line[: most - 3] + "..."
