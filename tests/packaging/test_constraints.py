"""The constraints pin what the tests install, for each Python; lowest versions are all known."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.constraints import CONSTRAINTS, FOREIGN, SIMULATORS
from tests.constraints import PYTHONS as SUPPORTED
from tests.sessions.pythons import lowest

PYTHONS = ("3.10.13", "3.11.7", "3.12.1", "3.13.0", "3.14.0")
EXTRAS = importlib.metadata.metadata("dm-env-rpc-client").get_all("Provides-Extra") or []
FILES = {"test": CONSTRAINTS, "test-foreign": FOREIGN, "test-simulators": SIMULATORS}


def required(*extras: str) -> Iterator[Requirement]:
    """What the package and some of its extras require, with those that they name."""
    asked = [Requirement(line) for line in importlib.metadata.requires("dm-env-rpc-client") or []]
    todo, seen = list(extras), set(extras)
    while todo or not extras:
        extra = todo.pop() if todo else ""
        for requirement in asked:
            marker = str(requirement.marker or "")
            if (extra and f'extra == "{extra}"' not in marker) or (not extra and "extra" in marker):
                continue
            if requirement.name == "dm-env-rpc-client":
                todo += requirement.extras - seen
                seen |= requirement.extras
            else:
                yield requirement
        if not extra:
            return


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extra", FILES)
def test_every_requirement_has_one_version_that_it_allows(extra: str, python: str) -> None:
    environment = {
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
    }
    pins = {}
    for line in FILES[extra].read_text().splitlines():
        if line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(environment):
            assert pin.name not in pins, f"{pin.name} is pinned twice"
            (version,) = pin.specifier
            assert version.operator == "=="
            pins[canonicalize_name(pin.name)] = version.version
    found = [*required(), *required(extra)]
    assert len(found) > 20
    for requirement in found:
        # An extra that another one names holds on the same Pythons.
        markers = [{**environment, "extra": each} for each in ("", *EXTRAS)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, markers)):
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_the_lowest_version_of_every_dependency_is_tried() -> None:
    core = {requirement.name for requirement in required() if requirement.marker is None}
    assert set(lowest()) == core


def test_the_classifiers_name_the_pythons_that_are_tried() -> None:
    classifiers = importlib.metadata.metadata("dm-env-rpc-client").get_all("Classifier") or []
    named = [line.rpartition(" ")[2] for line in classifiers if ":: Python :: 3." in line]
    assert tuple(named) == SUPPORTED
