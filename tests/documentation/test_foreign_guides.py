"""The snippets of guides that use packages of the extra `test-foreign`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documentation.test_readme import FOREIGN, run_snippets


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", FOREIGN)
def test_the_snippets_run_in_order_in_a_clean_process(name: str, tmp_path: Path) -> None:
    pytest.importorskip(FOREIGN[name])
    run_snippets(name, tmp_path, timeout=600.0)  # One of them trains an agent.
