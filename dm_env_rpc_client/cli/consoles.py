"""Prints the output of all commands to terminals, files and pipes.

This module escapes text from servers and files, so that only the styles and cursor movements of
`rich` control the terminal. With `--json`, the text is escaped according to the rules of JSON.
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
    """A console that escapes unprintable characters, which could control the terminal.

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
"""The console on stderr for all output except results, which are printed to stdout."""


def cell(value: Any) -> str:
    """Return a value as one line of text for a `rich` table or tree."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return rich.markup.escape(one_line(text))


def table(
    columns: Iterable[str],
    rows: Iterable[Iterable[Any]],
    *,
    title: str | None = None,
    numbers: bool = False,
) -> rich.table.Table:
    """Return a table of values, with right-aligned columns if `numbers` is set."""
    made = rich.table.Table(title=title, title_justify="left", box=rich.box.SIMPLE)
    for column in columns:
        made.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(cell, row))
    return made


class Layers(rich.progress.ProgressColumn):
    """A column with the number of downloaded layers, which is empty if no image is being pulled."""

    def render(self, task: rich.progress.Task) -> rich.text.Text:
        if task.total is None:
            return rich.text.Text()
        return rich.text.Text(f"{task.completed:.0f}/{task.total:.0f} layers")


def progress(
    *columns: rich.progress.ProgressColumn,
    screen: rich.console.Console = console,
    is_shown: bool = True,
) -> rich.progress.Progress:
    """Return a context manager that shows a progress bar if the output is a terminal."""
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
    """Show on the terminal what the command is waiting for."""
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
        messages, which are printed as their type and their bytes in hexadecimal.
    """
    typer.echo(json_text(result))


def json_text(result: Any) -> str:
    """Return the text that `print_json` prints."""
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
