"""Every normative statement of the documents has a test that runs and asserts something.

The table says which. What a test proves is left to its readers.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.protocol.clauses import CLAUSES, Clause
from tests.support.assertions import asserts

TESTS = Path(__file__).resolve().parent.parent


@cache
def collected_in(path: Path) -> dict[str, ast.stmt]:
    """What pytest collects in a file, by name."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            names = (target.id for target in node.targets if isinstance(target, ast.Name))
            found |= dict.fromkeys(names, node)
    return {name: node for name, node in found.items() if name.startswith(("test_", "Test"))}


def is_left_out(node: ast.stmt) -> bool:
    """Whether the gate does not run it at all."""
    decorators = getattr(node, "decorator_list", [])
    marks = ("pytest.mark.slow", "pytest.mark.soak", "pytest.mark.skip")
    return any(ast.unparse(each).startswith(marks) for each in decorators)


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.statement)
def test_every_clause_has_a_test(clause: Clause) -> None:
    file, _, name = clause.test.partition("::")
    path = TESTS / f"{file}.py"
    node = collected_in(path).get(name)
    assert node is not None, clause.test
    assert not is_left_out(node), f"{clause.test} is no test of the gate"
    assert isinstance(node, ast.Assign) or asserts(path, name), f"{clause.test} asserts nothing"


def test_the_table_is_whole() -> None:
    documents = {clause.document for clause in CLAUSES}
    assert documents == {"overview", "reference", "older reference"}
    assert len({(c.document, c.heading, c.statement) for c in CLAUSES}) == len(CLAUSES) >= 100
