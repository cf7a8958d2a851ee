"""How much there is to read: lines of code and of docstrings, long files, long and deep functions.

A line of code has a token that is neither a comment nor part of a docstring. Generated modules do
not count, nor docstrings for the length of a function.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LONG_FILE = 450
LONG_FUNCTION = 60
DEEP_FUNCTION = 5
FLAT_FOLDER = 16

TOOLS = (
    "benchmarks", "fuzz", "scale", "sessions", "transcripts",
    # The scorecard's command; its rows are tests.
    "reliability/__main__.py", "reliability/report.py", "reliability/scorecard.py",
)  # fmt: skip
"""Programs for maintainers among the tests, and the tests of these programs."""

_NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


@dataclass
class Size:
    """The size of some files.

    Attributes:
      files: how many there are.
      code: lines of code.
      docstrings: lines of docstrings.
      notes: files, functions and folders that are longer or deeper than the constants above say.
    """

    files: int = 0
    code: int = 0
    docstrings: int = 0
    notes: list[str] = field(default_factory=list)

    def __add__(self, other: Size) -> Size:
        return Size(
            self.files + other.files,
            self.code + other.code,
            self.docstrings + other.docstrings,
            self.notes + other.notes,
        )


def measured(path: Path) -> Size:
    """Returns the size of a module, or of all modules in a folder and its folders."""
    if path.is_dir():
        inside = sorted(
            one for one in path.iterdir() if one.suffix == ".py" or (one / "__init__.py").exists()
        )
        total = sum((measured(one) for one in inside), Size())
        modules = [one for one in inside if one.is_file() and one.name != "__init__.py"]
        if len(modules) > FLAT_FOLDER:
            total.notes.append(f"{path}: {len(modules)} files")
        return total
    if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
        return Size()
    return _of_module(path)


def _of_module(path: Path) -> Size:
    text = path.read_text()
    tree = ast.parse(text)
    docstrings = set(_docstring_lines(tree))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    size = Size(1, len(code - docstrings), len(docstrings))
    length = text.count("\n")
    if length > LONG_FILE:
        size.notes.append(f"{path}: {length} lines")
    for function in _functions(tree):
        end = function.end_lineno or function.lineno
        lines = len(set(range(function.lineno, end + 1)) - docstrings)
        depth = _depth(function)
        if lines > LONG_FUNCTION or depth > DEEP_FUNCTION:
            size.notes.append(
                f"{path}:{function.lineno} {function.name}: {lines} lines, {depth} deep"
            )
    return size


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Yields the lines of docstrings: also of those that follow a variable."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield from range(statement.lineno, (statement.end_lineno or 0) + 1)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _depth(node: ast.AST) -> int:
    """Returns how deep the statements of a function are nested; definitions in it do not count."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deeper = isinstance(child, _NESTING) and not is_elif
        deepest = max(deepest, _depth(child) + deeper)
    return deepest
