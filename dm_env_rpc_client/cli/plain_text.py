"""Text from servers, made safe for a terminal."""

from __future__ import annotations

__all__ = ["one_line", "printable"]


def printable(text: str) -> str:
    """Replaces characters that could control a terminal; line breaks and tabs stay."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def one_line(text: str, most: int | None = None) -> str:
    """Returns printable text in one line, cut off if it has more than `most` characters."""
    line = printable(" ".join(text.split()))
    return line if most is None or len(line) <= most else line[: most - 3] + "..."
