"""What a test asserts, in itself or in a function of the tests that it calls."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TESTS = Path(__file__).parents[1]

_RAISES = {"check_env", "raises", "warns", "fail", "fnmatch_lines", "check"}
"""Functions of others that fail where something is wrong. `check` is of `Mistake` and `Target`."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class _Source(NamedTuple):
    """What is defined in a file, and where what it imports from the tests is, by name."""

    functions: dict[str, _Function]
    imported: dict[str, tuple[Path, str | None]]


@functools.cache
def _source(path: Path) -> _Source:
    tree = ast.parse(path.read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function)}
    imported: dict[str, tuple[Path, str | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
            folder = _TESTS.parent.joinpath(*str(node.module).split("."))
            for alias in node.names:
                module = folder / f"{alias.name}.py"
                single = folder.with_suffix(".py")
                place = (single if single.exists() else folder / "__init__.py", alias.name)
                imported[alias.asname or alias.name] = (module, None) if module.exists() else place
    return _Source(functions, imported)


def _called(path: Path, call: ast.Call) -> tuple[Path, str] | None:
    """The function of the tests that is called, as far as names tell."""
    functions, imported = _source(path)
    match call.func:
        case ast.Name(name):
            if name in functions:
                return path, name
            place, original = imported.get(name, (path, None))
            return (place, original) if original else None
        case ast.Attribute(ast.Name(module), name) if module in imported:
            place, original = imported[module]
            return None if original else (place, name)
        case ast.Attribute(_, name) if name in functions:
            return path, name
    return None


def _raises(call: ast.Call) -> bool:
    """Whether a call of somebody else's function fails where something is wrong."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    checks = any(
        each.arg == "check" and isinstance(each.value, ast.Constant) and each.value.value is True
        for each in call.keywords
    )
    return name in _RAISES or name.startswith("assert_") or checks


def asserts(path: Path, name: str, seen: set[tuple[Path, str]] | None = None) -> bool:
    """Whether a function of a file can fail by more than an exception of what it tries.

    Args:
      path: the file.
      name: the function.
      seen: the functions that were looked at before.
    """
    seen = set() if seen is None else seen
    function = _source(path).functions.get(name)
    if function is None or (path, name) in seen:
        return False
    seen.add((path, name))
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call):
            if _raises(node):
                return True
            place = _called(path, node)
            if place is not None and asserts(*place, seen):
                return True
    return False


def names_of_tests(path: Path) -> Iterator[str]:
    """Yields the tests of a file."""
    for name, function in _source(path).functions.items():
        if name.startswith("test_") and not isinstance(function, ast.ClassDef):
            yield name
