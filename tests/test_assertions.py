"""Every test asserts something, in itself or in a function of the tests that it calls."""

from __future__ import annotations

from pathlib import Path

from tests.support.assertions import asserts, names_of_tests

HERE = Path(__file__).parent


def test_every_test_asserts_something() -> None:
    paths = sorted(HERE.rglob("test_*.py"))
    found = [(path, name) for path in paths for name in names_of_tests(path)]
    assert len(found) > 2_000
    silent = [
        f"{path.relative_to(HERE.parent)}::{name}"
        for path, name in found
        if not asserts(path, name)
    ]
    assert silent == [], "say what would be wrong without the code that they try"


def test_what_counts_as_an_assertion(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        """
from tests.support import scripted
from tests.support.programs import run_python as run

def helper(): assert True
def recursive(): recursive()

def test_nothing(): make().close(); recursive()
def test_in_itself(): assert 1
def test_in_a_function(): helper()
def test_in_a_function_that_is_imported(): run("-V")
def test_in_a_module_that_is_imported(): scripted.freeze(1)
def test_of_pytest():
    with pytest.raises(ValueError): pass
def test_of_a_process(): subprocess.run(["true"], check=True)
def test_of_a_process_that_may_fail(): subprocess.run(["true"], check=False)
"""
    )
    silent = [name for name in names_of_tests(path) if not asserts(path, name)]
    assert silent == ["test_nothing", "test_of_a_process_that_may_fail"]
