"""constraints.txt pins what the tests install, for each Python; lowest versions are all known."""

from __future__ import annotations

import importlib.metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.constraints import CONSTRAINTS
from tests.pythons import PYTHONS as SUPPORTED
from tests.pythons import lowest

LINES = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
PYTHONS = ("3.10.13", "3.11.7", "3.12.1", "3.13.0")


HEAVY = {"ray", "stable-baselines3"}
"""What takes gigabytes, or long to start, is tried where somebody has installed it."""


def required() -> list[Requirement]:
    """What the package and the extras that its tests use require."""
    asked = importlib.metadata.requires("dm-env-rpc-client") or []
    return [
        requirement
        for requirement in map(Requirement, asked)
        if not requirement.extras and requirement.name not in HEAVY
    ]


def is_needed(requirement: Requirement, environment: dict[str, str]) -> bool:
    """Whether a Python with these markers needs it, for any extra."""
    extras = importlib.metadata.metadata("dm-env-rpc-client").get_all("Provides-Extra") or []
    return requirement.marker is None or any(
        requirement.marker.evaluate({**environment, "extra": extra}) for extra in extras
    )


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_has_one_version_that_it_allows(python: str) -> None:
    environment = {
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": "linux",
        "implementation_name": "cpython",
    }
    pins = {}
    for pin in map(Requirement, LINES):
        if pin.marker is None or pin.marker.evaluate(environment):
            assert pin.name not in pins, f"{pin.name} is pinned twice"
            (version,) = pin.specifier
            assert version.operator == "=="
            pins[canonicalize_name(pin.name)] = version.version
    for requirement in required():
        if not is_needed(requirement, environment):
            continue
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_the_lowest_version_of_every_dependency_is_tried() -> None:
    core = {requirement.name for requirement in required() if requirement.marker is None}
    assert set(lowest()) == core


def test_the_classifiers_name_the_pythons_that_are_tried() -> None:
    classifiers = importlib.metadata.metadata("dm-env-rpc-client").get_all("Classifier") or []
    named = [line.rpartition(" ")[2] for line in classifiers if ":: Python :: 3." in line]
    assert tuple(named) == SUPPORTED
