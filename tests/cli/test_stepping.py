"""`bench` and `run`, of batches too: their numbers, their progress, and what games wait for."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import connect, join_world, make
from dm_env_rpc_client.cli.stepping.episodes import Stopwatch
from dm_env_rpc_client.server import Catch, Race, Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.cli.commands import invoke, started
from tests.cli.hostile import serving
from tests.cli.terminals import COMMAND, Terminal
from tests.support.environments import Dice, Echo
from tests.support.scripted import settles
from tests.support.stopwatch import patience

PHASES = ("encode", "send", "wait", "decode")


def measured(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoke("bench", *arguments, "--json").stdout)
    return found


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_the_numbers_add_up(catch_server: Server, transport: str) -> None:
    found = measured(catch_server.address, "--seconds", "0.5", "--transport", transport)
    assert found["address"] == catch_server.address
    assert found["transport"] == transport
    assert found["steps"] > 0
    latency = found["latency_us"]
    assert latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    assert 0 < latency["mean"] <= latency["max"]
    assert list(found["phases_us"]) == list(PHASES)
    for phase in found["phases_us"].values():
        assert 0 <= phase["p50"] <= phase["p90"] <= latency["max"]
    with make(catch_server.address) as env:
        assert found["request_bytes"] == len(env._prepare_step({"paddle": 1}).message)
        board = env.reset().observation["board"]
    assert board.nbytes < found["answer_bytes"] < board.nbytes + 100
    assert [row["depth"] for row in found["pipeline"]] == [1, 2, 4, 8, 16, 32, 64]
    in_mb = (found["request_bytes"] + found["answer_bytes"]) / 1e6
    for row in found["pipeline"]:
        assert row["megabytes_per_second"] == pytest.approx(row["steps_per_second"] * in_mb)


def test_time_in_the_server_is_told_from_the_way_there_and_back() -> None:
    with serve(Echo) as server:
        found = measured(server.address, "--seconds", "1", "--create", "seconds=0.02")
    assert found["latency_us"]["p50"] > 20_000
    assert found["phases_us"]["wait"]["p50"] > 15_000
    estimate = found["server"]
    assert estimate["estimate_us"] == pytest.approx(estimate["wait_us"] - estimate["round_trip_us"])
    assert estimate["estimate_us"] > 10_000
    # A server that takes one step at a time is not faster with more pending.
    assert all(row["steps_per_second"] < 52 for row in found["pipeline"])


def test_actions_are_taken_in_turn_by_waiting_and_ahead(echo_environment_server: Server) -> None:
    with make(echo_environment_server.address) as env:
        env.reset()
        actions = [{"value": value} for value in range(5)]
        stopwatch = Stopwatch(env, actions)
        stopwatch.step()
        stopwatch.step()
        assert stopwatch.ahead(4, 0.0) > 0
        assert env.connection.in_flight == 0
        # Two, and then four; the fifth was looked at to see the end of the time.
        assert env.step(next(stopwatch._actions)).observation["value"] == (2 + 4 + 1) % 5


def test_there_is_no_estimate_without_an_answer_to_an_extension() -> None:
    with ScriptedServer(serving(ends="extension")) as server:
        found = measured(server.address, "--seconds", "0.5")
        assert found["steps"] > 0
        assert found["server"]["estimate_us"] is None
        assert "ended" in found["server"]["reason"]
        text = invoke("bench", server.address, "--seconds", "0.2").stdout
        assert "the server's share of the wait is unknown: " in text


@pytest.mark.terminal
def test_the_progress_of_a_run_is_shown_on_a_terminal_and_only_there(
    tmp_path: Path, catch_server: Server
) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.run(f"{COMMAND} run {catch_server.address} -n 3000 > {os.devnull}")
        terminal.waits_for(r"random policy at localhost:\d+ .*\d+/3000")
        terminal.press("C-c")
        terminal.waits_for("interrupted")
        # The shell can be used: it echoes, knows lines, and has its cursor.
        terminal.run(
            "stty -a | tr ' ' '\\n' | grep -E '^-?(echo|icanon|isig);?$' | xargs echo modes:"
        )
        terminal.waits_for("\nmodes: isig icanon echo")
        assert terminal.state() == {"alternate": "0", "cursor": "1"}


@pytest.fixture
def race() -> Iterator[Server]:
    with serve({"race": Race, "catch": Catch}) as server:
        yield server
        assert server.errors == []


CREATE = ("--create", "environment=race", "--create", "length=3")


def test_who_is_missing_and_how_to_join_and_ctrl_c(race: Server) -> None:
    process = started("run", race.address, "--timeout", "60", *CREATE)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "waiting: 1 more player(s) must join; others join with: dm-env-rpc run" in line
    assert re.search(rf"{race.address} --world '[^']+'", line)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=patience(20))
    assert (process.returncode, out, errors.strip()) == (130, "", "error: interrupted")
    assert settles(lambda: (race.agent_count, race.world_count) == (0, 0))


def test_it_goes_on_when_all_are_there_and_says_who_does_not_act(race: Server) -> None:
    process = started(
        "run", race.address, "--timeout", "60", "--json", "--episodes", "1", "--policy", "constant",
        *CREATE,
    )  # fmt: skip
    assert process.stderr is not None
    found = re.search(r"--world '([^']+)'", process.stderr.readline())
    assert found is not None
    with connect(race.address) as connection, join_world(connection, found[1]) as other:
        first = other.reset()
        assert first.observation["positions"].tolist() == [0, 0]
        # This one does not act, and it is told of at once.
        line = process.stderr.readline()
        assert "waiting: player 1 has not stepped" in line
        while not other.step({"move": 1}).last():
            pass
        out, _ = process.communicate(timeout=patience(20))
        (episode,) = json.loads(out)["episodes"]
        assert (episode["ended"], episode["length"], process.returncode) == ("terminated", 3, 0)


def carts(num_envs: int = 3, mode: str = "NEXT_STEP", entry: str = "sync") -> Any:
    kwargs = {"autoreset_mode": AutoresetMode[mode]} if entry == "sync" else {}
    return gymnasium.make_vec(
        "CartPole-v1", num_envs, vectorization_mode=entry, vector_kwargs=kwargs
    )


@pytest.fixture(scope="module")
def batches() -> Iterator[Callable[[Any], Server]]:
    with serve(Catch) as catch, serve(carts) as vector, serve(Dice) as dice:
        yield {Catch: catch, carts: vector, Dice: dice}.__getitem__


SERVED = pytest.mark.parametrize("served", [Catch, carts], ids=["dm_env", "vector"])


@SERVED
def test_inspect_says_how_many_environments(batches: Callable[[Any], Server], served: Any) -> None:
    address = batches(served).address
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
    alone = json.loads(invoke("inspect", batches(Catch).address, "--json").stdout)
    assert alone["num_envs"] is None


@SERVED
def test_run_runs_a_share_of_the_episodes_in_each_row(
    batches: Callable[[Any], Server], served: Any
) -> None:
    options = ("--create", "num_envs=3", "--seed", "1", "-n", "7")
    found = json.loads(invoke("run", batches(served).address, *options, "--json").stdout)
    rows = [episode["row"] for episode in found["episodes"]]
    assert sorted(rows) == [0, 0, 0, 1, 1, 2, 2]
    assert (found["finished"], found["num_envs"]) == (7, 3)
    for episode in found["episodes"]:
        assert episode["ended"] == "terminated"
        if served is carts:
            assert episode["return"] == episode["length"]
        else:
            assert (abs(episode["return"]), episode["length"]) == (1.0, 9)
    shown = invoke("run", batches(served).address, *options).stdout
    assert "row" in shown
    assert "steps of 3 environments" in shown


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_run_knows_every_autoreset_mode(batches: Callable[[Any], Server], mode: str) -> None:
    options = ("--create", "num_envs=2", "--create", f"mode={mode}", "-n", "6", "--json")
    found = json.loads(invoke("run", batches(carts).address, *options).stdout)
    assert [episode["return"] == episode["length"] for episode in found["episodes"]] == [True] * 6


@pytest.mark.parametrize("entry", ["sync", "vector_entry_point"])
def test_run_cuts_rows_off(batches: Callable[[Any], Server], entry: str) -> None:
    options = ("--create", "num_envs=2", "--create", f"entry={entry}", "--policy", "constant")
    run = ("run", batches(carts).address, *options, "-n", "4", "--max-steps", "5", "--json")
    found = json.loads(invoke(*run).stdout)
    assert [(e["length"], e["ended"]) for e in found["episodes"]] == [(5, "cut off")] * 4
    assert found["finished"] == 0


def test_run_says_which_row_failed(batches: Callable[[Any], Server]) -> None:
    options = ("--create", "num_envs=2", "--create", "rows.fails_at=[0, 2]")
    failed = invoke("run", batches(Dice).address, *options, code=1)
    assert "environment 1 at" in failed.output
    assert "has lost the dice" in failed.output


@SERVED
def test_bench_has_the_rate_of_all_environments(
    batches: Callable[[Any], Server], served: Any
) -> None:
    options = ("--create", "num_envs=4", "--seconds", "0.3")
    found = json.loads(invoke("bench", batches(served).address, *options, "--json").stdout)
    assert found["num_envs"] == 4
    assert "steps/s of 4 environments" in invoke("bench", batches(served).address, *options).stdout
