"""`dm-env-rpc bench`: what it says adds up, and is about the server that it measures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import typer.testing
from google.rpc import status_pb2

from dm_env_rpc_client import connect, create_world, destroy_world, dm_env_rpc_pb2, make
from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.cli.stepping import bench
from dm_env_rpc_client.cli.stepping.stopwatch import Stopwatch
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.environments import Echo

PHASES = ("encode", "send", "wait", "decode")


def invoke(*arguments: str, code: int = 0) -> typer.testing.Result:
    result = typer.testing.CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def measured(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoke(*arguments, "--json").stdout)
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
        assert found["request_bytes"] == len(env.prepare_step({"paddle": 1}).message)
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
        found = measured(server.address, "--seconds", "1", "--create", "seconds=0.004")
    assert found["latency_us"]["p50"] > 4_000
    assert found["phases_us"]["wait"]["p50"] > 3_000
    estimate = found["server"]
    assert estimate["estimate_us"] == pytest.approx(estimate["wait_us"] - estimate["round_trip_us"])
    assert estimate["estimate_us"] > 2_000
    # A server that takes one step at a time is not faster with more pending.
    assert all(row["steps_per_second"] < 260 for row in found["pipeline"])


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


def test_people_get_tables(catch_server: Server) -> None:
    text = invoke(catch_server.address, "--seconds", "0.3", "--policy", "constant").stdout
    for expected in (*PHASES, "p99.9", "steps/s", "MB/s", "pending", "share of the wait is"):
        assert expected in text


def test_a_world_that_exists_is_joined_and_left(catch_server: Server) -> None:
    with connect(catch_server.address) as connection:
        name = create_world(connection, {"rows": 5})
        found = measured(catch_server.address, "--world", name, "--seconds", "0.2")
        assert found["steps"] > 0
        destroy_world(connection, name)


def test_what_was_created_is_destroyed(catch_server: Server) -> None:
    measured(catch_server.address, "--seconds", "0.1", "--create", "rows=3")
    assert catch_server.world_count == 0
    assert catch_server.agent_count == 0


def of_one_scalar(at_extension: Callable[[], Any]) -> Any:
    """A server of one scalar, and what it answers to an extension: an error, or None to end."""
    spec = dm_env_rpc_pb2.TensorSpec(name="x", dtype=dm_env_rpc_pb2.FLOAT)
    specs = dm_env_rpc_pb2.ActionObservationSpecs(actions={1: spec}, observations={1: spec})
    floats = dm_env_rpc_pb2.Tensor.FloatArray(array=[0])

    def run(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            response = dm_env_rpc_pb2.EnvironmentResponse()
            if request.HasField("extension"):
                error = at_extension()
                if error is None:
                    return
                response.error.CopyFrom(error)
            elif request.HasField("step"):
                response.step.state = dm_env_rpc_pb2.RUNNING
                response.step.observations[1].floats.CopyFrom(floats)
            elif request.HasField("join_world"):
                response.join_world.specs.CopyFrom(specs)
            elif request.HasField("reset"):
                response.reset.specs.CopyFrom(specs)
            else:
                getattr(response, request.WhichOneof("payload")).SetInParent()
            yield response

    return run


def ends_the_stream() -> None:
    return None


def test_a_server_that_ends_the_stream_at_what_it_does_not_know_is_measured_all_the_same() -> None:
    with ScriptedServer(of_one_scalar(ends_the_stream)) as server:
        found = measured(server.address, "--seconds", "0.3")
        assert found["server"]["estimate_us"] is None
        assert "ended" in found["server"]["reason"]
        assert found["steps"] > 0
        assert "is unknown" in invoke(server.address, "--seconds", "0.2").stdout


def refuses_slowly() -> Any:
    time.sleep(0.01)
    return status_pb2.Status(code=12, message="unknown")


def test_there_is_no_estimate_if_the_request_for_it_takes_longer_than_a_step() -> None:
    with ScriptedServer(of_one_scalar(refuses_slowly)) as server:
        found = measured(server.address, "--seconds", "0.5")["server"]
        assert found["estimate_us"] is None
        assert found["round_trip_us"] > found["wait_us"]
        assert "waits longer" in found["reason"]
        text = invoke(server.address, "--seconds", "0.3").stdout
        assert "the server's share of the wait is unknown: a request that the server only" in text


ESTIMATE = {"estimate_us": 123456.0, "wait_us": 234567.0, "round_trip_us": 111111.0}


@pytest.mark.parametrize("width", [50, 80])
def test_lines_end_between_words_on_a_terminal(
    width: int,
    catch_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = {**measured(catch_server.address, "--seconds", "0.2"), "server": ESTIMATE}
    texts = []
    for variables in ({}, {"TTY_COMPATIBLE": "1", "COLUMNS": str(width), "NO_COLOR": "1"}):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        bench._print(result)
        texts.append(re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out))
    to_file, to_terminal = texts
    assert to_terminal.split() == to_file.split()
    assert max(len(line.rstrip()) for line in to_terminal.splitlines()) <= width
    assert max(map(len, to_file.splitlines())) > 150


def refuses_steps(requests: Iterator[Any], context: Any) -> Iterator[Any]:
    for request in requests:
        response = dm_env_rpc_pb2.EnvironmentResponse()
        if request.HasField("step"):
            response.error.CopyFrom(status_pb2.Status(code=9, message="it is broken"))
        else:
            getattr(response, request.WhichOneof("payload")).SetInParent()
        yield response


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["localhost:1", "--timeout", "0.5"], 3, "refused"),
        (["{address}", "--transport", "pigeon"], 2, "pigeon"),
        (["{address}", "--policy", "os:sep"], 2, "random or constant"),
        (["{address}", "--seconds", "0"], 2, "seconds"),
        (["{address}", "--create", "rows=0"], 1, "at least 2 rows"),
        (["{address}", "--world", "x", "--create", "a=1"], 2, "--create is for"),
        (["{address}", "--world", "nowhere"], 1, "no world 'nowhere'"),
        (["192.0.2.1:1"], 2, "insecure"),
    ],
)
def test_errors_are_one_line(
    catch_server: Server, arguments: list[str], code: int, text: str
) -> None:
    given = [each.replace("{address}", catch_server.address) for each in arguments]
    result = invoke(*given, code=code)
    assert text in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_server_that_refuses_steps_is_told() -> None:
    with ScriptedServer(refuses_steps) as server:
        assert "it is broken" in invoke(server.address, code=1).stderr


def test_the_command_itself_leaves_stdout_to_the_result(catch_server: Server) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "dm_env_rpc_client", "bench", catch_server.address,
         "--seconds", "0.2", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    assert finished.stderr == ""
    assert np.isfinite(json.loads(finished.stdout)["latency_us"]["mean"])
