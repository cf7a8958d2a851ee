"""Commands on batched worlds: of dm_env environments, and of a vector environment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.server import Catch, Server, serve
from tests.cli.commands import invoke
from tests.support.environments import Dice


def carts(num_envs: int = 3, mode: str = "NEXT_STEP", entry: str = "sync") -> Any:
    kwargs = {"autoreset_mode": AutoresetMode[mode]} if entry == "sync" else {}
    return gymnasium.make_vec(
        "CartPole-v1", num_envs, vectorization_mode=entry, vector_kwargs=kwargs
    )


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[[Any], Server]]:
    with serve(Catch) as catch, serve(carts) as vector, serve(Dice) as dice:
        yield {Catch: catch, carts: vector, Dice: dice}.__getitem__


SERVED = pytest.mark.parametrize("served", [Catch, carts], ids=["dm_env", "vector"])


@SERVED
def test_inspect_says_how_many_environments(serving: Callable[[Any], Server], served: Any) -> None:
    address = serving(served).address
    found = json.loads(invoke("inspect", address, "--create", "num_envs=4", "--json").stdout)
    assert found["num_envs"] == 4
    assert found["observations"]["step_type"]["shape"] == [4]
    assert (
        "A batch of 4 environments" in invoke("inspect", address, "--create", "num_envs=4").stdout
    )
    form = "SyncVectorEnv: arrays known after the first reset, NEXT_STEP"
    assert found["form"] == (form if served is carts else None)
    text = invoke("inspect", address, "--create", "num_envs=4").stdout
    assert (f"Its form: {form}." in text) == (served is carts)
    alone = json.loads(invoke("inspect", serving(Catch).address, "--json").stdout)
    assert alone["num_envs"] is None


@SERVED
def test_run_runs_a_share_of_the_episodes_in_each_row(
    serving: Callable[[Any], Server], served: Any
) -> None:
    options = ("--create", "num_envs=3", "--seed", "1", "-n", "7")
    found = json.loads(invoke("run", serving(served).address, *options, "--json").stdout)
    rows = [episode["row"] for episode in found["episodes"]]
    assert sorted(rows) == [0, 0, 0, 1, 1, 2, 2]
    assert (found["finished"], found["num_envs"]) == (7, 3)
    for episode in found["episodes"]:
        assert episode["ended"] == "terminated"
        if served is carts:
            assert episode["return"] == episode["length"]
        else:
            assert (abs(episode["return"]), episode["length"]) == (1.0, 9)
    shown = invoke("run", serving(served).address, *options).stdout
    assert "row" in shown
    assert "steps of 3 environments" in shown


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_run_knows_every_autoreset_mode(serving: Callable[[Any], Server], mode: str) -> None:
    options = ("--create", "num_envs=2", "--create", f"mode={mode}", "-n", "6", "--json")
    found = json.loads(invoke("run", serving(carts).address, *options).stdout)
    assert [episode["return"] == episode["length"] for episode in found["episodes"]] == [True] * 6


@pytest.mark.parametrize("entry", ["sync", "vector_entry_point"])
def test_run_cuts_rows_off(serving: Callable[[Any], Server], entry: str) -> None:
    options = ("--create", "num_envs=2", "--create", f"entry={entry}", "--policy", "constant")
    run = ("run", serving(carts).address, *options, "-n", "4", "--max-steps", "5", "--json")
    found = json.loads(invoke(*run).stdout)
    assert [(e["length"], e["ended"]) for e in found["episodes"]] == [(5, "cut off")] * 4
    assert found["finished"] == 0


def test_run_says_which_row_failed(serving: Callable[[Any], Server]) -> None:
    options = ("--create", "num_envs=2", "--create", "rows.fails_at=[0, 2]")
    failed = invoke("run", serving(Dice).address, *options, code=1)
    assert "environment 1 at" in failed.output
    assert "has lost the dice" in failed.output


@SERVED
def test_bench_has_the_rate_of_all_environments(
    serving: Callable[[Any], Server], served: Any
) -> None:
    options = ("--create", "num_envs=4", "--seconds", "0.3")
    found = json.loads(invoke("bench", serving(served).address, *options, "--json").stdout)
    assert found["num_envs"] == 4
    assert "steps/s of 4 environments" in invoke("bench", serving(served).address, *options).stdout
