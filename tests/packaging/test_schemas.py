"""The files that a host of repositories reads conform to their schemas."""

from __future__ import annotations

import pytest

from tests.constraints import ROOT

SCHEMAS = {
    "github-workflows": [".github/workflows/tests.yml", ".github/workflows/release.yml"],
    "github-issue-forms": [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/feature.yml"],
    "github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "dependabot": [".github/dependabot.yml"],
    "citation-file-format": ["CITATION.cff"],
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_conform_to_their_schemas(schema: str) -> None:
    # Here, since it takes seconds to import, in each process of a run.
    main = pytest.importorskip("check_jsonschema").main
    testing = pytest.importorskip("click.testing")
    files = [str(ROOT / name) for name in SCHEMAS[schema]]
    command = ["--builtin-schema", f"vendor.{schema}", *files]
    checked = testing.CliRunner().invoke(main, command)
    assert checked.exit_code == 0, checked.output


def test_every_such_file_is_checked() -> None:
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.yml")}
    assert there <= {name for names in SCHEMAS.values() for name in names}
