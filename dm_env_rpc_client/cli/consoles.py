"""The only way in which commands write to a terminal, a file or a pipe.

Text from servers and files is escaped here, so that only `rich`'s own styles and cursor movements
control the terminal; `--json` escapes as JSON does.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import rich.box
import rich.console
import rich.markup
import rich.progress
import rich.segment
import rich.table
import rich.text
import typer

from dm_env_rpc_client.plain_text import one_line, printable


class Console(rich.console.Console):
    """A console whose text cannot control the terminal.

    Args:
      **options: as for `rich.console.Console`.
    """

    def __init__(self, **options: Any):
        super().__init__(emoji=False, **options)

    def render(
        self, renderable: Any, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[rich.segment.Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable():
                yield segment
            else:
                yield rich.segment.Segment(printable(text), style)


console = Console(stderr=True, soft_wrap=True, highlight=False)
"""Stderr, for everything but results, which go to stdout."""


def cell(value: Any) -> str:
    """Return the text of a value in one line, for tables and trees of `rich`."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return rich.markup.escape(one_line(text))


def table(
    columns: Iterable[str],
    rows: Iterable[Iterable[Any]],
    *,
    title: str | None = None,
    numbers: bool = False,
) -> rich.table.Table:
    """Return a table of values; `numbers` aligns all columns to the right."""
    made = rich.table.Table(title=title, title_justify="left", box=rich.box.SIMPLE)
    for column in columns:
        made.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(cell, row))
    return made


class Layers(rich.progress.ProgressColumn):
    """Number of downloaded layers of an image; nothing if no image is being pulled."""

    def render(self, task: rich.progress.Task) -> rich.text.Text:
        if task.total is None:
            return rich.text.Text()
        return rich.text.Text(f"{task.completed:.0f}/{task.total:.0f} layers")


def progress(
    *columns: rich.progress.ProgressColumn,
    screen: rich.console.Console = console,
    is_shown: bool = True,
) -> rich.progress.Progress:
    """Return a progress bar, shown within its context and only on a terminal."""
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        *columns,
        console=screen,
        transient=True,
        disable=not (is_shown and screen.is_terminal),
    )


@contextlib.contextmanager
def waiting(for_what: str) -> Iterator[None]:
    """Show on a terminal why the command waits."""
    if console.is_terminal:
        with console.status(cell(for_what)):
            yield
    else:
        yield


def print_text(text: str) -> None:
    """Print a result as text."""
    typer.echo(printable(text))


def print_json(result: Any) -> None:
    """Print a result as one line of JSON.

    NaN and infinities, which JSON lacks, become the strings "NaN", "Infinity" and "-Infinity",
    as in the JSON of protobuf.

    Args:
      result: mappings, sequences, strings, numbers, bools and None; NumPy arrays and scalars;
        messages, which become their type and their bytes in hexadecimal.
    """
    typer.echo(json_text(result))


def json_text(result: Any) -> str:
    """Return the output of `print_json`."""
    # DEL is the one control character that JSON does not escape.
    return json.dumps(_plain(result), allow_nan=False).replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if hasattr(value, "type_url"):
        return {"type_url": value.type_url, "value": value.value.hex()}
    return value
