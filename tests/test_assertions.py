"""Every test asserts something, in itself or in a function of the tests that it calls."""

from __future__ import annotations

from pathlib import Path

from tests.support.assertions import asserts, names_of_tests

HERE = Path(__file__).parent


def test_every_test_asserts_something() -> None:
    paths = sorted(HERE.rglob("test_*.py"))
    found = [(path, name) for path in paths for name in names_of_tests(path)]
    assert len(found) > 1_000
    silent = [
        f"{path.relative_to(HERE.parent)}::{name}"
        for path, name in found
        if not asserts(path, name)
    ]
    assert silent == [], "say what would be wrong without the code that they try"
