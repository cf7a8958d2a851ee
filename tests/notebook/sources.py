"""The notebooks of the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent.parent / "notebooks"
PICTURES = FOLDER / "pictures"


def read(name: str) -> Any:
    """Returns a notebook without its outputs."""
    import nbformat  # Takes seconds: its checks build grammars.

    notebook: Any = nbformat.read(FOLDER / f"{name}.ipynb", 4)  # type: ignore[no-untyped-call]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def write(notebook: Any, path: Path) -> None:
    import nbformat

    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


def up_to(notebook: Any, text: str) -> Any:
    """Drops what comes after the first cell of code that holds `text`."""
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and text in cell.source:
            notebook.cells = notebook.cells[: index + 1]
            return notebook
    raise AssertionError(f"no cell holds {text!r}")
