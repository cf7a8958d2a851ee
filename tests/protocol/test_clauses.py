"""Every normative statement of the documents has a test."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.protocol.clauses import CLAUSES, Clause

TESTS = Path(__file__).resolve().parent.parent


@cache
def names_in(path: Path) -> frozenset[str]:
    """The names of what pytest collects in a file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in names if name.startswith(("test_", "Test")))


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.statement)
def test_every_clause_has_a_test(clause: Clause) -> None:
    file, _, name = clause.test.partition("::")
    assert name in names_in(TESTS / f"{file}.py"), clause.test


def test_the_table_is_whole() -> None:
    documents = {clause.document for clause in CLAUSES}
    assert documents == {"overview", "reference", "older reference"}
    assert len({(c.document, c.heading, c.statement) for c in CLAUSES}) == len(CLAUSES) >= 100
