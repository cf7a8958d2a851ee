"""The rooms of the package, their sizes and the arrows between them: `python -m tests.rooms`.

A room is a folder directly in the package. The files beside the rooms are the front door, and
`errors`, `extras`, `plain_text` and `version`, which any room may use; they are listed, too, and
counted apart. An arrow A -> B says that some file of A imports some file of B, imports for type
checkers alone left out; the stub `__init__.pyi` counts as the imports of `__init__`. A circle is a
set of files that import one another, imports for type checkers included. `test_layering.py` holds
the package to `MAY_IMPORT`.
"""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Sequence
from pathlib import Path

import dm_env_rpc_client
from tests.sizes import TOOLS, Size, measured

NAME = "dm_env_rpc_client"
PACKAGE = Path(dm_env_rpc_client.__file__).parent

# Room -> the rooms that it imports, from the top of the house down: an arrow points downwards.
# client and server do not know each other; bridges know neither, but Gymnasium's spaces in
# `adaptors`; of transports they and `tensors` know nothing but addresses, and how to wait. What the
# server needs of adaptors, `system.foreign_environments` loads by name, for environments of a
# library that is there.
MAY_IMPORT: dict[str, set[str]] = {
    "__main__": {"cli"},
    "cli": {
        "_proto", "adaptors", "arguments", "bridges", "client", "compliance", "environment",
        "errors", "extensions", "extras", "launch", "plain_text", "protocol", "recording", "server",
        "system", "tensors", "transports", "version",
    },
    "notebook": {
        "arguments", "environment", "errors", "extensions", "extras", "server", "system",
        "tensors",
    },
    "gymnasium": {"adaptors", "extras", "system"},
    "__init__": {
        "_proto", "client", "environment", "errors", "protocol", "server", "system", "tensors",
    },
    "bridges": {"adaptors", "arguments", "errors", "extras", "system", "tensors", "transports"},
    "adaptors": {
        "arguments", "environment", "errors", "extensions", "extras", "protocol", "recording",
        "server", "system", "tensors",
    },
    "distributed": {
        "arguments", "environment", "errors", "extras", "plain_text", "server", "system",
        "tensors",
        "transports",
    },
    "testing": {
        "arguments", "client", "compliance", "environment", "errors", "protocol", "server",
        "system", "transports",
    },
    "compliance": {
        "_proto", "arguments", "client", "errors", "plain_text", "protocol", "system", "tensors",
        "transports",
    },
    "server": {"_proto", "arguments", "errors", "protocol", "system", "tensors", "transports"},
    "extensions": {"_proto", "errors", "plain_text", "tensors"},
    "environment": {
        "_proto", "arguments", "client", "errors", "launch", "plain_text", "protocol", "system",
        "tensors", "transports",
    },
    "launch": {"arguments", "client", "errors", "system"},
    "client": {"arguments", "errors", "protocol", "recording", "system", "tensors", "transports"},
    "recording": {
        "arguments", "errors", "extras", "protocol", "system", "tensors", "transports",
        "version",
    },
    "protocol": {"_proto", "errors", "tensors"},
    "transports": {"_proto", "arguments", "errors", "system", "version"},
    "tensors": {"_proto", "arguments", "errors", "plain_text"},
    "system": {"errors", "extras", "plain_text"},
    "arguments": {"errors"},
    "extras": {"version"},
    "errors": {"plain_text"},
    "plain_text": set(),
    "version": set(),
    "_proto": set(),
}  # fmt: skip


@functools.cache
def modules() -> Sequence[tuple[str, ast.Module]]:
    """Returns each module of the package, named without the package, with its syntax tree."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append((name, ast.parse((path if name else path.with_suffix(".pyi")).read_text())))
    return found


@functools.cache
def imports(tree: ast.Module, for_types: bool = False) -> Sequence[str]:
    """Returns the absolute names that a module imports.

    Args:
      tree: the module.
      for_types: whether to include what only type checkers import.
    """
    found: list[str] = []
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # The stub of the package itself is the one file with relative imports.
            module = ".".join(filter(None, [NAME, node.module])) if node.level else node.module
            found.extend(f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.extend(node.body if for_types else ())
            nodes.extend(node.orelse)
        elif not isinstance(node, ast.expr):
            nodes.extend(ast.iter_child_nodes(node))
    return found


@functools.cache
def own_module(imported: str) -> str | None:
    """Returns the module of this package that an imported name leads to; None for others."""
    if imported.split(".", maxsplit=1)[0] != NAME:
        return None
    parts = imported.split(".")[1:]
    while parts:
        path = PACKAGE.joinpath(*parts)
        if path.with_suffix(".py").exists() or path.is_dir():
            return ".".join(parts)
        parts = parts[:-1]
    return ""


def room(module: str) -> str:
    """Returns the room that a module is in."""
    return module.split(".", maxsplit=1)[0] or "__init__"


def arrows(for_types: bool = False) -> dict[tuple[str, str], list[str]]:
    """Returns each arrow between two rooms, with the imports that make it.

    Args:
      for_types: whether to include what only type checkers import.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name, tree in modules():
        for imported in imports(tree, for_types):
            target = own_module(imported)
            if target is not None and room(target) != room(name):
                found.setdefault((room(name), room(target)), []).append(f"{name} -> {target}")
    return found


def circles() -> list[list[str]]:
    """Returns sets of files that import one another; a folder's own file may import its files."""
    graph: dict[str, set[str]] = {}
    for name, tree in modules():
        targets = {own_module(imported) for imported in imports(tree, for_types=True)}
        graph[name] = {target for target in targets if target is not None and target != name}
    found = []
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            circle = error.args[1]
            found.append(circle)
            graph[circle[1]].discard(circle[0])
        else:
            return found


def _print_rooms() -> None:
    found = arrows()
    print(f"{'':14} {'files':>5} {'code':>6} {'docs':>6}   imports (in brackets: for types alone)")
    for one in sorted({room(name) for name, _ in modules()}):
        path = PACKAGE / one
        size = measured(path if path.is_dir() else path.with_suffix(".py"))
        at_run_time = {target for origin, target in found if origin == one}
        targets = [
            target if target in at_run_time else f"({target})"
            for origin, target in sorted(arrows(for_types=True))
            if origin == one
        ]
        print(f"{one:14} {size.files:5} {size.code:6} {size.docstrings:6}   {', '.join(targets)}")


def _print_totals() -> None:
    notes = []
    tests = PACKAGE.parent / "tests"
    tools = sum((measured(tests / name) for name in TOOLS), Size())
    for what, size in (("package", measured(PACKAGE)), ("tests", measured(tests))):
        notes += size.notes
        print(f"{what:14} {size.files:5} {size.code:6} {size.docstrings:6}")
    print(f"{'  tools':14} {tools.files:5} {tools.code:6} {tools.docstrings:6}")
    found = {room(name) for name, _ in modules()}
    folders = {name for name in found if (PACKAGE / name).is_dir()}
    every = arrows(for_types=True)
    between = [arrow for arrow in every if folders.issuperset(arrow)]
    print(
        f"\n{len(folders)} rooms, {len(between)} arrows between them; with {len(found - folders)} "
        f"files beside them, {len(every)} arrows; {len(circles())} circles of files"
    )
    for circle in circles():
        print("  " + " -> ".join(circle))
    print(f"\n{len(notes)} long files, full folders, long or deep functions:")
    for note in notes:
        print("  " + note.replace(f"{PACKAGE.parent}/", ""))


if __name__ == "__main__":
    _print_rooms()
    _print_totals()
