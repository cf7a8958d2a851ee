"""The command line, in processes of its own, as a person or a script would call it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import SpecError, connect, create_world, make
from dm_env_rpc_client.cli.stepping import episodes
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.tensors.setting_text import parse_settings
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.cli.commands import address_of, ended, invoke, started
from tests.launch.processes import children_of, is_alive
from tests.support.environments import Robot
from tests.support.stopwatch import ends_within


def test_run_without_an_address_serves_catch_itself() -> None:
    result = invoke("run", "--episodes", "3", "--create", "rows=4")
    assert "3 episodes, 9 steps" in result.stdout
    for column in ("return", "length", "ended", "steps/s", "p50", "p99"):
        assert column in result.stdout


def summary_of(*arguments: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(invoke("run", *arguments, "--json").stdout)
    return summary


def test_run_prints_json(catch_server: Server) -> None:
    options = ("-n", "5", "--create", "rows=3", "--seed", "1")
    summary = summary_of(catch_server.address, *options)
    assert summary["address"] == catch_server.address
    assert summary["steps"] == 10
    assert [episode["length"] for episode in summary["episodes"]] == [2] * 5
    assert {episode["ended"] for episode in summary["episodes"]} == {"terminated"}
    returns = [episode["return"] for episode in summary["episodes"]]
    assert summary["mean_return"] == pytest.approx(np.mean(returns))
    assert summary["steps_per_second"] > 0
    assert list(summary["latency_us"]) == ["p50", "p90", "p99"]


class Shrinking(Catch):
    """Every second episode is longer."""

    def reset(self) -> dm_env.TimeStep:
        self._rows = 7 - self._rows
        return super().reset()

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"board": VariableArray((-1, 5), np.float32)}


def test_what_was_cut_off_is_not_counted_as_finished() -> None:
    with serve(Shrinking) as server:
        line = (server.address, "-n", "5", "--max-steps", "2", "--create", "rows=4")
        summary = summary_of(*line)
        ended = [(episode["ended"], episode["length"]) for episode in summary["episodes"]]
        assert ended == [("terminated", 2), ("cut off", 2)] * 2 + [("terminated", 2)]
        returns = [episode["return"] for episode in summary["episodes"][::2]]
        assert summary["finished"] == 3
        assert summary["mean_return"] == pytest.approx(np.mean(returns))
        shown = invoke("run", *line).stdout
        assert "3 of 5 episodes finished, 10 steps: return" in shown
        assert "\n2 cut off by --max-steps" in shown


def test_run_with_a_policy_of_ones_own(
    catch_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tracking_policy.py").write_text(
        "import numpy as np\n"
        "def act(timestep, action_spec):\n"
        "    board = timestep.observation['board']\n"
        "    ball, paddle = np.argwhere(board)[0][1], np.argmax(board[-1])\n"
        "    return {'paddle': 1 + int(np.sign(ball - paddle))}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    summary = summary_of(catch_server.address, "--policy", "tracking_policy:act")
    assert summary["mean_return"] == 1.0


def test_run_joins_a_world_that_exists(catch_server: Server) -> None:
    with connect(catch_server.address) as connection:
        name = create_world(connection, {"rows": 5})
        assert summary_of(catch_server.address, "--world", name, "-n", "1")["steps"] == 4


def test_inspect_shows_every_spec() -> None:
    with serve(Robot) as server:
        text = invoke("inspect", server.address, "--create", "joints=2").stdout
        for name in (
            "arm.torque",
            "camera.rgb",
            "joints.1",
            "reward",
            "uint8",
            "4 x 5 x 3",
            "-1 .. 1",
        ):
            assert name in text
        described = json.loads(invoke("inspect", server.address, "--json").stdout)
        torque = {"dtype": "float32", "shape": [3], "minimum": -1.0, "maximum": 1.0}
        assert described["actions"]["arm.torque"] == torque
        assert described["actions"]["speech"]["dtype"] == "string"
        assert described["observations"]["heard"]["shape"] == [2]


def test_settings_are_json_or_text() -> None:
    parsed = parse_settings(["a=1", "b=2.5", "c=true", "d=[1, 2]", "e=hello", "f=a=b"])
    assert parsed == {"a": 1, "b": 2.5, "c": True, "d": [1, 2], "e": "hello", "f": "a=b"}


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [["--json"], []])
def test_serve_runs_until_it_is_told_to_stop(stop: signal.Signals, options: list[str]) -> None:
    process = started("serve", "tests.support.environments:Echo", "--address=localhost:0", *options)
    with make(address_of(process), {"length": 3}) as env:
        env.reset()
        assert env.step({"value": 5}).observation["value"] == 5
        with ends_within(5, process):
            process.send_signal(stop)
        ended(process)


@pytest.mark.parametrize(
    "line",
    [
        "run {} -n 2 --max-steps 3 --json",
        "inspect {} --create length=5",
        "bench {} --seconds 0.1",
        "check {} --only joined",
        "properties list {}",
    ],
)
def test_commands_start_servers_that_end_with_them(line: str) -> None:
    before = {child for child in children_of(os.getpid()) if is_alive(child)}
    result = invoke(*line.format("python:tests.support.environments:Echo").split())
    assert "error" not in result.stderr
    assert {child for child in children_of(os.getpid()) if is_alive(child)} <= before


def test_a_server_that_does_not_start_is_told() -> None:
    result = invoke("run", "process:false {port}", code=3)
    assert "the server ended with exit code 1: false" in result.stderr


def test_policies_repeat_with_their_seed() -> None:
    spec: dict[str, Any] = Robot().action_spec()
    timestep = dm_env.restart({})
    first, second = (episodes.make_policy("random", spec, seed=4)(timestep) for _ in range(2))
    np.testing.assert_array_equal(first["arm"]["torque"], second["arm"]["torque"])
    constant = episodes.make_policy("constant", spec, None)
    assert constant(timestep) is constant(timestep)
    with pytest.raises(SpecError, match="random, constant or MODULE:FUNCTION"):
        episodes.make_policy("clever", spec, None)
