"""Clients and servers of the former version, with those of this one.

What a client sees is what it saw with both ends of the former version.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium.dict_vector_env import DictVectorEnv
from dm_env_rpc_client.server import serve
from tests.interop.former import scenarios, served
from tests.interop.former.version import former_version
from tests.support.programs import ROOT
from tests.support.stopwatch import patience

ONE_FILE = "launch/standalone/dm_env_rpc_server.py"
FACTORY = "tests.interop.former.served:make_environment"


def start(package: Path, *command: str) -> subprocess.Popen[str]:
    """Starts a Python that imports a version of the package."""
    # The tests are this version's: they use the names that both have.
    paths = os.pathsep.join((str(package), str(ROOT)))
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=package,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def serving(package: Path, *command: str) -> Iterator[str]:
    """Yields the address at which a process serves, which its last line says."""
    with start(package, *command) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                word = line.split()[-1]
                if word.rpartition(":")[2].isdecimal():
                    yield word
                    break
            else:
                pytest.fail("the server ended before it served")
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def former() -> Path:
    return former_version()


@pytest.fixture(scope="module")
def former_server(former: Path) -> Iterator[str]:
    with serving(former, "-m", "tests.interop.former.scenarios", "serve") as address:
        yield address


def one_file(package: Path) -> contextlib.AbstractContextManager[str]:
    file = str(package / "dm_env_rpc_client" / ONE_FILE)
    return serving(package, file, FACTORY, "--address", "localhost:0")


@pytest.fixture(scope="module")
def former_one_file(former: Path) -> Iterator[str]:
    with one_file(former) as address:
        yield address


@pytest.fixture(scope="module")
def former_client(former: Path, former_server: str, former_one_file: str) -> dict[str, Any]:
    """What the former client sees, by the kind of the server and the name of the scenario."""
    with serve(served.make_environment) as new, one_file(ROOT) as new_one_file:
        places = {
            "former": (former_server, scenarios.ALL),
            "former one-file": (former_one_file, scenarios.ANYWHERE),
            "new": (new.address, {**scenarios.ALL, **scenarios.REFUSED}),
            "new one-file": (new_one_file, scenarios.ANYWHERE),
        }
        asked = json.dumps({address: list(names) for address, names in places.values()})
        with start(former, "-m", "tests.interop.former.scenarios", asked) as process:
            output, _ = process.communicate(timeout=patience(100))
    file, answers = output.splitlines()
    assert Path(file).is_relative_to(former)
    found = json.loads(answers)
    return {kind: found[address] for kind, (address, _) in places.items()}


@pytest.mark.parametrize("name", scenarios.ALL)
def test_a_former_client_sees_the_same_at_the_new_server(
    former_client: dict[str, Any], name: str
) -> None:
    assert former_client["new"][name] == former_client["former"][name]


@pytest.mark.parametrize("name", scenarios.ANYWHERE)
def test_a_former_client_sees_the_same_at_the_new_server_in_one_file(
    former_client: dict[str, Any], name: str
) -> None:
    assert former_client["new one-file"][name] == former_client["former one-file"][name]


@pytest.mark.parametrize("name", scenarios.ALL)
def test_the_new_client_sees_the_same_at_the_former_server(
    former_client: dict[str, Any], former_server: str, name: str
) -> None:
    (found,) = scenarios.found_at(former_server, [name]).values()
    assert found == former_client["former"][name]


@pytest.mark.parametrize("name", scenarios.ANYWHERE)
def test_the_new_client_sees_the_same_at_the_former_server_in_one_file(
    former_client: dict[str, Any], former_one_file: str, name: str
) -> None:
    (found,) = scenarios.found_at(former_one_file, [name]).values()
    assert found == former_client["former one-file"][name]


def test_a_former_client_is_told_that_rows_of_a_batch_step_together(
    former_client: dict[str, Any],
) -> None:
    found = former_client["new"]
    assert found["some_rows"].startswith("DmEnvRpcError: ")
    assert "'step_mask' is not supported, because all rows of a batch step" in found["some_rows"]
    # It does not find the action in the specs, and says so itself, before it sends anything.
    assert found["a_part_of_a_batch"].startswith("SpecError: environments [1] are rows of one ")


def test_the_scenarios_succeed(former_client: dict[str, Any]) -> None:
    failed = {
        (kind, name): result
        for kind, results in former_client.items()
        for name, result in results.items()
        if isinstance(result, str) and name not in scenarios.REFUSED
    }
    assert failed == {}
    assert former_client["former"]["failing"] == [13, True]


def test_dicts_of_rows_are_taken_from_the_stacks_of_a_former_server(former_server: str) -> None:
    settings = [{"kind": "informed", "first": first} for first in (7, 8)]
    mode = AutoresetMode.SAME_STEP
    moves = (np.array([2, 1]), np.array([[0.5], [0.25]]))
    with DictVectorEnv(former_server, 2, settings, autoreset_mode=mode) as envs:
        firsts: list[dict[str, Any]] = [{}, {}]
        envs.reset_each([1, 2], None, firsts)
        steps = [envs.step_each(moves, firsts)[3] for _ in range(3)]
    assert [first["first"] for first in firsts] == [7, 8]
    for infos in steps:
        assert [info["number"] for info in infos] == [2, 1]
        assert [info["real"] for info in infos] == [1.0, 0.75]
    assert [info["sometimes"] for info in steps[1]] == [7, 8]
    assert "sometimes" not in steps[2][0]
    assert steps[2][1]["nested"] == {"yes": True, "deep": {"count": 3}}
    assert steps[2][1]["terminal_observation"]["which"] == 2
