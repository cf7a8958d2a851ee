"""`dm-env-rpc bench`: what it says adds up, and is about the server that it measures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import dm_env_rpc_pb2, make
from dm_env_rpc_client.cli.stepping.episodes import Stopwatch
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.cli.commands import invoke
from tests.support.environments import Echo
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


def of_one_scalar(at_extension: Callable[[], Any]) -> Any:
    """A server of one scalar, and what it answers to an extension: an error, or None to end."""
    spec = dm_env_rpc_pb2.TensorSpec(name="x", dtype=dm_env_rpc_pb2.FLOAT)
    specs = {"specs": {"actions": {1: spec}, "observations": {1: spec}}}
    observed = {1: dm_env_rpc_pb2.Tensor(floats={"array": [0]})}
    answers: dict[str, Any] = {
        "join_world": specs,
        "reset": specs,
        "step": {"state": dm_env_rpc_pb2.RUNNING, "observations": observed},
    }

    def run(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            kind = request.WhichOneof("payload")
            answer = answers.get(kind, {})
            if kind == "extension":
                kind, answer = "error", at_extension()
                if answer is None:
                    return
            yield dm_env_rpc_pb2.EnvironmentResponse(**{kind: answer})

    return run


def refuses_slowly() -> Any:
    time.sleep(patience(0.03))  # This server takes longer for it than for a step.
    return {"code": 12, "message": "unknown"}


@pytest.mark.parametrize(
    ("at_extension", "reason"), [(lambda: None, "ended"), (refuses_slowly, "waits longer")]
)
def test_there_is_no_estimate_without_an_answer_that_is_quicker_than_a_step(
    at_extension: Callable[[], Any], reason: str
) -> None:
    with ScriptedServer(of_one_scalar(at_extension)) as server:
        found = measured(server.address, "--seconds", "0.5")
        assert found["steps"] > 0
        assert found["server"]["estimate_us"] is None
        assert reason in found["server"]["reason"]
        text = invoke("bench", server.address, "--seconds", "0.2").stdout
        assert "the server's share of the wait is unknown: " in text
