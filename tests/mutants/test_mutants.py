"""Mutants of a small package, in a checkout of its own, and the tests that notice them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutants import __main__ as command
from tests.mutants.changes import mutants_of
from tests.mutants.concern import concerning, covering
from tests.mutants.trying import Copy, copied

CODE = '''"""Says something."""

__all__ = ["half"]


def half(number: int = 7, wide: bool = True) -> "int | None":
    """Returns half of it: 2 for 4."""
    if number < 0 and not wide:
        raise ValueError(f"{number + 1} is negative")
    return number // 2  # Half.
'''

CHANGES = [
    "6:23:constant: 7 -> (8)",
    "6:39:constant: True -> (False)",
    "8:7:and-or: number < 0 and not wide -> (number < 0 or not wide)",
    "8:7:compares: number < 0 -> (number <= 0)",
    "8:7:never: number < 0 and not wide -> False",
    "8:7:part0: number < 0 and not wide -> (not wide)",
    "8:7:part1: number < 0 and not wide -> (number < 0)",
    "8:16:constant: 0 -> (1)",
    "8:22:not: not wide -> (wide)",
    '9:8:removed: raise ValueError(f"{number + 1} is negative") -> pass',
    "10:4:returns: return number // 2 -> return None",
    "10:11:calculates: number // 2 -> (number * 2)",
    "10:21:constant: 2 -> (3)",
]

TESTS = """
import time
from dm_env_rpc_client.numbers import half

def test_half():
    assert half(8) == 4

def test_that_fails_always():
    assert half(8) == 5

def test_that_takes_long():
    while half(2) is None:
        time.sleep(0.01)  # It takes no processor from others.
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a small package of the same name."""
    # Plugins of the real package are none of this one.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    root = tmp_path / "checkout"
    (root / "dm_env_rpc_client").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "dm_env_rpc_client" / "__init__.py").touch()
    (root / "dm_env_rpc_client" / "numbers.py").write_text(CODE)
    (root / "tests" / "test_half.py").write_text(TESTS)
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return root


@pytest.fixture
def copy(root: Path) -> Iterator[Copy]:
    with copied(root) as copy:
        yield copy


def test_each_change_is_small_and_is_in_code_that_runs() -> None:
    mutants = mutants_of("half.py", CODE)
    assert [str(mutant).removeprefix("half.py:") for mutant in mutants] == CHANGES
    for mutant in mutants:
        changed = mutant.applied(CODE)
        assert changed != CODE
        assert len(changed.splitlines()) == len(CODE.splitlines())
        compile(changed, "half.py", "exec")
    assert "return (number * 2)  # Half." in mutants[-2].applied(CODE)


def test_a_character_of_several_bytes_moves_nothing() -> None:
    source = 'x = {"\N{SNOWMAN}": 1}\n'
    (mutant,) = mutants_of("x.py", source)
    assert mutant.applied(source) == 'x = {"\N{SNOWMAN}": (2)}\n'


def test_what_no_test_fails_for_is_not_noticed_and_nothing_is_changed(
    copy: Copy, root: Path
) -> None:
    found = {}
    for mutant in mutants_of("dm_env_rpc_client/numbers.py", CODE):
        if mutant.line == 10 or mutant.kind == "removed":
            found[mutant.kind] = copy.notice(mutant, [[], ["tests"]]).noticed_by
    name = "tests/test_half.py::test_half"
    assert found == {"removed": "", "returns": name, "calculates": name, "constant": name}
    assert copy.failing == ["tests/test_half.py::test_that_fails_always"]
    for place in (root, copy.folder):
        assert (place / "dm_env_rpc_client" / "numbers.py").read_text() == CODE


def test_a_large_number_becomes_another() -> None:
    """1e300 + 1 is 1e300, so no test could notice that mutant."""
    (mutant,) = mutants_of("limits.py", "MOST = 1e300\n")
    assert "2e+300" in mutant.after


def test_tests_that_come_to_no_end_have_noticed_it(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutants.trying._LIMIT_SECONDS", 3.0)
    mutants = mutants_of("dm_env_rpc_client/numbers.py", CODE)
    (mutant,) = (mutant for mutant in mutants if mutant.kind == "returns")
    group = ["tests/test_half.py::test_that_takes_long"]
    assert copy.notice(mutant, [group]).noticed_by == "the time limit"


def test_the_command_says_which_survive(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(command, "ROOT", root.resolve())
    path, report = root / "dm_env_rpc_client", tmp_path / "found.json"
    options = ["--json", str(report), "--tests", "tests"]
    names = [f"dm_env_rpc_client/numbers.py:{place}" for place in ("9:8:removed", "10:21:constant")]
    only = [f"--only={name}" for name in names]
    assert command.main([str(path), *options, *only]) == 1
    printed = capsys.readouterr()
    assert f"not noticed: {names[0]}: " in printed.out
    assert "left out, since it fails without a change: " in printed.out
    assert printed.out.endswith("2 mutants, 1 noticed, 1 not\n")
    assert "[2/2, 1 not noticed]" in printed.err
    found = json.loads(report.read_text())
    assert [each["name"] for each in found["mutants"]] == names
    assert [bool(each["noticed_by"]) for each in found["mutants"]] == [False, True]
    assert command.main([str(path), *options, only[1]]) == 0


def test_tests_that_run_the_line_are_run_first(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(command, "ROOT", root.resolve())
    measured = tmp_path / "measured"
    name = "tests/test_half.py::test_half"
    data = CoverageData(str(measured))
    for context, lines in (
        ("", {3, 6}),
        (f"{name}|setup", {8}),
        (f"{name}[a|b]|run", {8, 10}),
        ("tests/test_other.py::test_more|run", {10}),
    ):
        data.set_context(context)
        data.add_lines({str(root / "dm_env_rpc_client" / "numbers.py"): lines})
    data.write()
    number = "dm_env_rpc_client/numbers.py"
    found = [covering(number, line, measured, root) for line in (3, 6, 8, 9, 10)]
    other = "tests/test_other.py::test_more"
    assert found == [[], [], [name], [name], [name, other]]
    (root / "tests" / "test_other.py").write_text("def test_more(): pass\n")
    only = f"--only={number}:10:21:constant"
    path = str(root / "dm_env_rpc_client")
    assert command.main([path, only, "--measured", str(measured)]) == 0
    assert f"noticed by {name}" in capsys.readouterr().err


def test_a_seed_picks_the_same_mutants() -> None:
    path = str(Path(command.ROOT, "dm_env_rpc_client", "protocol"))
    first = command.chosen([path], 3, 10, [])
    assert [each.name for each in first] == [
        each.name for each in command.chosen([path], 3, 10, [])
    ]
    assert first != command.chosen([path], 4, 10, [])
    assert len({each.name for each in command.chosen([path], 3, None, [])}) > 500


@pytest.mark.parametrize(
    ("path", "near", "folder"),
    [
        ("protocol/lifecycle.py", "tests/protocol/test_lifecycle.py", "tests/protocol"),
        ("server/batch.py", "tests/server/batches/test_batches.py", "tests/server"),
        ("transports/http2/protocol/server_half.py",
         "tests/transports/http2/protocol/test_server_half.py", "tests/transports/http2/protocol"),
        ("launch/standalone/dm_env_rpc_server.py",
         "tests/launch/standalone/test_header_blocks.py", "tests/launch/standalone"),
        ("errors.py", "tests/test_errors.py", "tests/test_front_door.py"),
    ],
)  # fmt: skip
def test_the_tests_of_a_file_are_near_it(path: str, near: str, folder: str) -> None:
    first, second, *_ = concerning(f"dm_env_rpc_client/{path}", command.ROOT)
    assert near in first
    assert folder in second
