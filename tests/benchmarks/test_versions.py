"""Two versions are stepped in turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import versions
from tests.benchmarks.version_bursts import CASES
from tests.support.programs import ROOT, run_python

COMMAND = ("-m", "tests.benchmarks.versions", "HEAD", "--rounds", "2")


@pytest.mark.history
@pytest.mark.parametrize("free", [False, True])
def test_a_commit_and_the_working_tree_step_in_turns(tmp_path: Path, free: bool) -> None:
    out = tmp_path / "found.json"
    names = ["make", "RemoteVectorEnv of 8"]
    only = [part for name in names for part in ("--only", name)]
    options = ["--json", out, *(["--free"] if free else [])]
    finished = run_python(*COMMAND, *only, *options, timeout=300)
    lines = finished.stdout.splitlines()
    assert [line[:38].rstrip() for line in lines] == names
    found = json.loads(out.read_text())
    assert list(found) == names
    for of_case in found.values():
        older, newer = of_case["older"], of_case["newer"]
        assert [len(older), len(newer)] == [2, 2]
        # A step of any machine takes between a microsecond and a second.
        assert all(1e-6 < each < 1 for each in older + newer)
        # The median of two is their mean.
        ratios = [newer[k] / older[k] for k in range(2)]
        assert of_case["ratio"] == pytest.approx(sum(ratios) / 2)


@pytest.mark.history
def test_a_ratio_above_the_bound_is_an_exit_code() -> None:
    finished = run_python(*COMMAND, "--only", "make", "--most", "0", code=1, timeout=300)
    assert finished.stdout.rstrip().endswith("above 0.0")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_each_way_of_stepping_works(case: str) -> None:
    [[found]] = versions.measure([ROOT], case, 1, free=True)
    assert found > 0


def test_a_version_that_does_not_begin_is_named(tmp_path: Path) -> None:
    package = tmp_path / "dm_env_rpc_client"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit\n")
    with pytest.raises(RuntimeError, match=r"'make' of .* did not begin: it imported ''"):
        versions.measure([tmp_path], "make", 1, free=True)
