"""Two versions are stepped in turns."""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.former.version import COMMIT, former_version
from tests.support.programs import run_python


def test_a_commit_and_the_working_tree_step_in_turns(tmp_path: Path) -> None:
    former_version()  # Skips this where the history is not at hand.
    out = tmp_path / "found.json"
    options = ["--rounds", "2", "--json", out]
    named = [part for case in ("make", "RemoteVectorEnv of 8") for part in ("--only", case)]
    finished = run_python("-m", "tests.benchmarks.versions", COMMIT, *named, *options, timeout=300)
    lines = finished.stdout.splitlines()
    assert [line[:20].rstrip() for line in lines] == ["make", "RemoteVectorEnv of 8"]
    for found in json.loads(out.read_text()).values():
        assert [len(found[name]) for name in ("older", "newer", "ratio")] == [2, 2, 2]
        assert all(0 < each < 1e6 for each in found["older"] + found["newer"])
    again = ["-m", "tests.benchmarks.versions", COMMIT, "--only", "make", "--rounds", "2"]
    run_python(*again, "--free", "--most", "0", code=1, timeout=300)
