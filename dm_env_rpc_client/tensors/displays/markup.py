"""Functions that create small pieces of HTML, or find the leaves of nested values.

Names and other strings come from servers, so this module escapes them and limits their length.
Colours are inherited from the page, so that text is legible in light and dark themes.

The flat name of a leaf consists of its keys and indices, joined by periods, as in the protocol. A
structure that is a single leaf has the name that the caller passes.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf import message as protobuf_message

MAX_TEXT = 2000
"""The maximum length of a displayed string. Longer strings are truncated."""

MAX_ROWS = 200
"""The maximum number of rows of a table."""

_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0;border:none"
_HEAD = f"{_CELL};font-weight:normal;opacity:0.6"


def shorten(text: str, length: int = MAX_TEXT) -> str:
    """Return `text`, truncated to `length` characters with an ellipsis if it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def escape(value: object, length: int = MAX_TEXT) -> str:
    """Return `value` as a string, escaped for use in HTML elements and attributes."""
    # Lone surrogates are replaced, because they cannot be sent to a browser.
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return html.escape(shorten(text, length), quote=True)


def preformatted(text: str) -> str:
    """Return text as escaped HTML that preserves line breaks and spaces."""
    style = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;line-height:1.3"
    return f'<span style="{style}">{escape(text)}</span>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table.

    Args:
      columns: the titles of the columns, which this function escapes.
      rows: the cells of each row, as HTML that the caller has escaped. Rows beyond `MAX_ROWS` are
        only counted.
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
    """Return the HTML in `bodies` below `title`, which this function escapes."""
    return (
        f'<div style="margin:2px 0 8px"><div style="font-weight:600">{escape(title)}</div>'
        f"{''.join(bodies)}</div>"
    )


_SEPARATOR = "."


def named_leaves(structure: Any, root: str) -> dict[str, Any]:
    """Return the leaves of nested mappings, lists and tuples.

    Args:
      structure: the structure, or None, which has no leaves.
      root: the name of a structure that is itself a leaf.
    """
    if structure is None:
        return {}
    return {_name(path) or root: leaf for path, leaf in leaf_paths(structure)}


def leaf_paths(structure: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the leaves of a structure, each with its path of keys and indices."""
    if _is_mapping(structure):
        for key, child in structure.items():
            yield from leaf_paths(child, (*path, key))
    elif isinstance(structure, list | tuple):
        for index, child in enumerate(structure):
            yield from leaf_paths(child, (*path, index))
    else:
        yield path, structure


def rebuild(structure: Any, values: Mapping[str, Any], root: str) -> Any:
    """Return `structure` with each leaf replaced by the value of the same name.

    A leaf of a mapping is omitted if there is no value for it.

    Raises:
      KeyError: there is no value for the root, or for a leaf of a list or tuple.
    """
    return _rebuild(structure, values, (), root)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and not isinstance(value, protobuf_message.Message)


def _name(path: tuple[Any, ...]) -> str:
    return _SEPARATOR.join(map(str, path))


def _rebuild(structure: Any, values: Mapping[str, Any], path: tuple[Any, ...], root: str) -> Any:
    if _is_mapping(structure):
        return {
            key: _rebuild(child, values, (*path, key), root)
            for key, child in structure.items()
            if any(_name(below) in values for below, _ in leaf_paths(child, (*path, key)))
        }
    if isinstance(structure, list | tuple):
        children = [
            _rebuild(child, values, (*path, index), root) for index, child in enumerate(structure)
        ]
        if hasattr(structure, "_fields"):
            return type(structure)(*children)
        return type(structure)(children)
    return values[_name(path) or root]
