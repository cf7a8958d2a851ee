"""A Python in which some packages are not installed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tests.support.programs import ROOT

_PROGRAM = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {names!r} else find(name, path, target)


PathFinder.find_spec = find_spec
"""


def hide(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Returns the variables with which a child process does not find packages.

    Args:
      folder: where the module is written that Python imports as it starts.
      names: of the packages.
    """
    (folder / "sitecustomize.py").write_text(_PROGRAM.format(names=set(names)))
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
