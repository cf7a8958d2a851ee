"""`dm-env-rpc bench`: what it says adds up, and is about the server that it measures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.cli.stepping.episodes import Stopwatch
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.cli.commands import invoke
from tests.cli.hostile import serving
from tests.support.environments import Echo

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


def test_phases_leave_nothing_of_a_step_out(echo_environment_server: Server) -> None:
    with make(echo_environment_server.address) as env:
        env.reset()
        stopwatch = Stopwatch(env, [{"value": 1}])
        step = stopwatch.step()
        assert step.total == step.encode + step.send + step.wait + step.decode
        assert all(getattr(step, phase) > 0 for phase in PHASES)


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
