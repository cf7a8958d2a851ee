"""Which tests concern a file."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "dm_env_rpc_client"

_ELSEWHERE = ("benchmarks", "documentation", "notebook", "packaging", "scale", "mutants")
"""Rooms of tests that are about other things, or that no single file is the subject of."""

# fmt: off
_ALSO = {
    "adaptors": [
        "tests/travelling", "tests/recording/test_exports.py",
        "tests/recording/test_odd_exports.py",
    ],
    "client": ["tests/transports/http2/client", "tests/environment/test_dm_env_adaptor.py"],
    "environment": [
        "tests/client", "tests/interop/test_batches.py", "tests/travelling",
        "tests/adaptors/pettingzoo", "tests/adaptors/gymnasium",
    ],
    "launch": ["tests/travelling"],
    "protocol": ["tests/client", "tests/environment/test_dm_env_adaptor.py", "tests/server"],
    "recording": ["tests/cli/test_recordings.py"],
    "server": [
        "tests/environment/many", "tests/adaptors/gymnasium", "tests/adaptors/pettingzoo",
        "tests/travelling", "tests/reliability/connections", "tests/reliability/hostile",
    ],
    "tensors": ["tests/protocol", "tests/extensions"],
    "transports": ["tests/client", "tests/reliability/connections"],
}
# fmt: on
"""What else tries a room: it is run last."""


def concerning(path: str, root: Path) -> list[list[str]]:
    """Returns groups of files and folders of tests, the ones nearest to a file first.

    The first group has the tests that are named after the file, or import it; the second one is the
    folder of the tests that mirrors its folder; the third one the rest of its room, and tests of
    other rooms that try it.

    Args:
      path: a file of the package, relative to the checkout.
      root: the checkout.
    """
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    name = module.rpartition(".")[2].removeprefix("async_")
    mirrored = Path("tests", *module.split(".")[1:-1])
    while not (root / mirrored).is_dir():
        mirrored = mirrored.parent
    near = [
        each.relative_to(root).as_posix()
        for each in sorted((root / "tests").rglob("test_*.py"))
        if each.relative_to(root).parts[1] not in _ELSEWHERE
        and (_is_named_after(each, name, root / mirrored) or module in _imported(each))
    ]
    if mirrored == Path("tests"):
        files = sorted((root / "tests").glob("test_*.py"))
        return [near, [each.relative_to(root).as_posix() for each in files]]
    room = mirrored.parts[1]
    rest = [] if mirrored == Path("tests", room) else [f"tests/{room}"]
    return [near, [mirrored.as_posix()], [*rest, *_ALSO.get(room, [])]]


_MOST = 40
"""As many functions of a line are run before the groups, which may have all of them."""

_LINES_ABOVE = 5
"""How far above a part of a statement its first line may be."""


def covering(path: str, line: int, measured: Path, root: Path) -> list[str]:
    """Returns functions of tests that run a line, those of the nearest files first.

    They are taken from each file in turns. The parameters in the name of a test are left out, since
    their order depends on what else is collected.

    What only another process runs, or an import, has none.

    Args:
      path: a file of the package, relative to the checkout.
      line: its number there.
      measured: data of coverage with a context for each test (`pytest --cov --cov-context=test`).
      root: the checkout.
    """
    of_lines = _tests_of_lines(path, measured)
    near = concerning(path, root)[0]
    for each in range(line, max(0, line - _LINES_ABOVE), -1):
        tests = of_lines.get(each, ())
        by_file: dict[str, list[str]] = {}
        for name in tests:
            by_file.setdefault(name.partition("::")[0], []).append(name)
        files = sorted(by_file, key=lambda file: (file not in near, file))
        turns = itertools.zip_longest(*(by_file[file] for file in files))
        found = [name for turn in turns for name in turn if name is not None]
        if found:
            return found[:_MOST]
    return []


def _tests_of_lines(path: str, measured: Path) -> dict[int, list[str]]:
    from coverage import CoverageData

    data = CoverageData(str(measured))
    data.read()
    file = next((each for each in data.measured_files() if each.endswith(f"/{path}")), None)
    if file is None:
        return {}
    return {
        line: sorted({name.partition("|")[0].partition("[")[0] for name in names if "|" in name})
        for line, names in data.contexts_by_lineno(file).items()
    }


def _is_named_after(path: Path, name: str, folder: Path) -> bool:
    words = path.stem.removeprefix("test_")
    return folder in path.parents and words.startswith(name)


@functools.cache
def _imported(path: Path) -> frozenset[str]:
    """The modules that a file imports, and names in them."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
