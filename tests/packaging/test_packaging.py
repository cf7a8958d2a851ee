"""What is published, and the files that a host of repositories reads."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from tests.constraints import ROOT, make_environment
from tests.snippets import snippets
from tests.support.stopwatch import patience

# A build hook, in no package.
shown_by_index = runpy.run_path(str(ROOT / "docs" / "package_index.py"))["shown"]

README = (ROOT / "README.md").read_text()
RELATIVE = re.compile(r"\]\((?![a-z]+:|#)[^)\s]+\)")


def test_an_index_shows_links_to_the_tag() -> None:
    shown = shown_by_index(README, "https://example.org/it", "1.2")
    assert RELATIVE.search(shown) is None
    assert "(https://example.org/it/blob/v1.2/CONTRIBUTING.md)" in shown
    assert re.search(r"!\[.+\]\(https://example.org/it/raw/v1.2/\S+/explorer.png\)", shown)


def test_without_an_address_an_index_shows_texts() -> None:
    assert RELATIVE.search(README)
    shown = shown_by_index(README, "", "1.2")
    assert RELATIVE.search(shown) is None
    assert "also CONTRIBUTING.md" in shown
    assert "explorer.png" not in shown
    external = re.findall(r"\]\([a-z]+:[^)]+\)", README)
    assert [link for link in external if link not in shown] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guide", ["gymnasium", "pettingzoo"])
def test_an_extra_is_enough_for_the_example_of_its_guide(guide: str, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment")
    subprocess.run([python, "-m", "pip", "install", "-q", f"{ROOT}[{guide}]"], check=True)
    example = tmp_path / "example.py"
    example.write_text(snippets((ROOT / "docs" / "how-to" / f"{guide}.md").read_text())[0])
    subprocess.run([python, example], cwd=tmp_path, check=True, timeout=patience(120))
