"""Each environment's own infos, as Stable-Baselines3 wants them, whatever those of other rows are.

What they are compared with is a list of the environments' own dicts, with their types, here; in
`tests/adaptors/test_sb3.py` it is Stable-Baselines3's own DummyVecEnv.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium.dict_vector_env import DictVectorEnv
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium.informing import KINDS, ROWS, identical, informing, played, waiting
from tests.support.one_file import one_file

PLACES: dict[str, dict[str, Any]] = {
    "batch": {},
    "streams": {"num_batches": 0},
    "two batches": {"num_batches": 2},
}


@contextlib.contextmanager
def opened(address: str, ends: str = "terminated", **options: Any) -> Iterator[Any]:
    settings = [{"row": row, "ends": ends} for row in range(ROWS)]
    mode = AutoresetMode.SAME_STEP
    with DictVectorEnv(address, ROWS, settings, autoreset_mode=mode, **options) as envs:
        yield envs


def played_there(envs: Any, kind: str, steps: int = 6, seeds: Any = None, **options: Any) -> Any:
    firsts: list[Any] = [{}] * ROWS
    envs.reset_each(seeds or [None] * ROWS, {"kind": kind, **options}, firsts)
    found: list[Any] = [list(firsts)]
    for _ in range(steps):
        infos = envs.step_each(np.zeros(ROWS, np.int64), firsts)[3]
        found.append((infos, list(firsts)))
    return found


def check_all_kinds(envs: Any) -> None:
    wrong = {}
    for kind in KINDS:
        mine, own = played_there(envs, kind), played(kind)
        if not identical(mine, own):
            wrong[kind] = mine, own
    assert wrong == {}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve(informing) as server:
        yield server.address


@pytest.mark.parametrize("place", PLACES)
def test_infos_are_the_environments_own(address: str, place: str) -> None:
    with opened(address, **PLACES[place]) as envs:
        check_all_kinds(envs)


def test_infos_of_several_processes_are_the_environments_own() -> None:
    with serve(informing, processes=2) as server, opened(server.address) as envs:
        check_all_kinds(envs)


def test_infos_of_the_one_file_server_are_the_environments_own() -> None:
    with one_file("tests.adaptors.gymnasium.informing:informing") as there, opened(there) as envs:
        check_all_kinds(envs)


def test_infos_of_rows_that_wait_in_threads_are_the_environments_own() -> None:
    with serve(waiting) as server, opened(server.address) as envs:
        check_all_kinds(envs)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ends", ["terminated", "truncated", "both"])
def test_they_say_how_episodes_end(address: str, ends: str, place: str) -> None:
    with opened(address, ends, **PLACES[place]) as envs:
        assert identical(played_there(envs, "one type"), played("one type", ends=ends))


@pytest.mark.parametrize("place", PLACES)
def test_integers_are_integers_in_json(address: str, place: str) -> None:
    with opened(address, **PLACES[place]) as envs:
        first, (infos, _) = played_there(envs, "one type", 1)
        assert json.loads(json.dumps([first, infos])) == [first, infos]


@pytest.mark.parametrize("place", PLACES)
def test_options_and_seeds_arrive_in_the_infos_of_resets(address: str, place: str) -> None:
    options = {"kind": "one type", "level": [1, 2.5, None], "_own": {"a": (1,), "b": np.int64(3)}}
    with opened(address, **PLACES[place]) as envs:
        found = played_there(envs, seeds=[7] * ROWS, **options)
        assert identical(found, played("one type", seed=7, options=options))


@pytest.mark.parametrize("place", PLACES)
def test_callers_may_change_what_they_were_given(address: str, place: str) -> None:
    with opened(address, **PLACES[place]) as envs:
        for kind in ("lists", "empty", "all empty"):
            found = played_there(envs, kind)
            for infos, firsts in found[1:]:
                for info in (*infos, *firsts):
                    info.clear()
                    info["mine"] = True
            assert identical(played_there(envs, kind), played(kind))
