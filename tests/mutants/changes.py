"""The mutants of a file: each is the file with one small change."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

N = TypeVar("N", bound=ast.AST)

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


class Mutant(NamedTuple):
    """A file with one change."""

    path: str
    """Relative to the checkout."""

    line: int
    column: int
    kind: str
    before: str
    """The code that is replaced."""

    after: str
    begin: int
    """Where it is in the file, in bytes."""

    @property
    def name(self) -> str:
        """Tells it from others of the same version of the file."""
        return f"{self.path}:{self.line}:{self.column}:{self.kind}"

    def applied(self, source: str) -> str:
        """Returns the text of the file with the change."""
        encoded, end = source.encode(), self.begin + len(self.before.encode())
        assert encoded[self.begin : end] == self.before.encode()
        return (encoded[: self.begin] + self.after.encode() + encoded[end:]).decode()

    def __str__(self) -> str:
        shown = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.name}: {' -> '.join(text[:60] for text in shown)}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Returns all mutants of a file, in the order of their places.

    Left out are docstrings, annotations, decorators, texts, what is logged, `__all__`, and what
    only type checkers run.

    Args:
      path: its name in the mutants.
      source: its text.
    """
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    encoded = source.encode()
    found = []
    for node, kind, after in _changes(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = encoded[begin:end].decode()
        found.append(Mutant(path, node.lineno, node.col_offset, kind, before, after, begin))
    return sorted(found, key=lambda mutant: mutant[:5])


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yields a node, the kind of the change, and the code that replaces the node."""
    for node in _executed(tree):
        if isinstance(node, ast.expr):
            for kind, expression in _expressions(node):
                yield node, kind, f"({ast.unparse(expression)})"
        elif isinstance(node, ast.If | ast.While):
            yield node.test, "never", "False"
        elif isinstance(node, ast.stmt):
            for kind, statement in _statements(node):
                yield node, kind, ast.unparse(statement)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a tree that say what is done."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_out(child):
                yield from _executed(child)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
            return True
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("_log" | "_LOG" | "log"), _))):
            return True
        case ast.Assign([ast.Name("__all__" | "__slots__")], _) | ast.If(ast.Name("TYPE_CHECKING")):
            return True
    return False


def _copied(node: N) -> N:
    return copy.deepcopy(node)


def _expressions(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare():
            for i, operator in enumerate(node.ops):
                changed = _copied(node)
                changed.ops[i] = _COMPARISONS[type(operator)]()
                yield f"compares{i or ''}", changed
        case ast.BoolOp():
            other = _copied(node)
            other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and-or", other
            for i in range(len(node.values)):
                fewer = _copied(node)
                del fewer.values[i]
                yield f"part{i}", fewer.values[0] if len(fewer.values) == 1 else fewer
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", operand
        case ast.BinOp() if type(node.op) in _OPERATORS and not _is_text(node):
            calculated = _copied(node)
            calculated.op = _OPERATORS[type(node.op)]()
            yield "calculates", calculated
        case ast.IfExp():
            yield "then", node.body
            yield "else", node.orelse
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() | float() as number):
            # A large float plus one is the same number.
            yield "constant", ast.Constant(number + 1 if number + 1 != number else number * 2)


def _is_text(node: ast.BinOp) -> bool:
    """Whether texts or lists are joined, or types are: another operator fails at once."""
    joined = (ast.JoinedStr, ast.List, ast.Tuple)
    return any(
        isinstance(side, joined)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes | None))
        for side in (node.left, node.right)
    )


def _statements(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    match node:
        case ast.Return(value) if value is not None and not _is_none(value):
            yield "returns", ast.Return(ast.Constant(None))
        case ast.Break():
            yield "break", ast.Continue()
        case ast.Continue():
            yield "continue", ast.Break()
        case ast.Expr(ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign() | ast.Delete():
            yield "removed", ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()], _):
            yield "removed", ast.Pass()


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
