"""The command line: runs, checks, health, help, and what becomes of errors and signals."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
import typer
import typer.main
from dm_env import specs
from google.rpc import status_pb2

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    __version__,
    connect,
    create_world,
    make,
)
from dm_env_rpc_client.cli import consoles, failures
from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.cli.failures import Terminated, UsageError, one_line_errors
from dm_env_rpc_client.cli.stepping import episodes
from dm_env_rpc_client.compliance import Outcome
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.tensors.setting_text import parse_settings
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.cli.commands import Peers, address_of, ended, invoke, started
from tests.compliance import playground
from tests.compliance.broken_servers import BROKEN
from tests.launch.processes import children_of, is_alive
from tests.support.environments import Robot
from tests.support.forks import run_command
from tests.support.stopwatch import ends_within
from tests.transports.test_health_check import answering


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


def test_a_good_server(catch_server: Server) -> None:
    settings = ("--create=rows=4", "--invalid-create=rows=-1", "--reset=rows=5")
    result = invoke("check", catch_server.address, *settings, "--several-worlds", "--one-agent")
    assert "passed  a_world_can_be_joined\n" in result.stdout
    assert "skipped messages_of_another_shape_are_refused: " in result.stdout
    assert " passed, 0 failed, 0 warned, " in result.stdout


def test_a_broken_server_as_json() -> None:
    check, session_class = BROKEN["sends errors without a message"]
    with playground.serve(session_class) as address:
        line = ("check", address, "--json", "--only=errors")
        summary = json.loads(invoke(*line).stdout)
        strict = json.loads(invoke(*line, "--strict", code=1).stdout)
    assert summary["address"] == address
    assert (summary["failed"], summary["warned"]) == (0, 1)
    assert (strict["failed"], strict["warned"]) == (1, 0)
    by_name = {row["name"]: row for row in summary["checks"]}
    assert len(by_name) == sum(summary[each.value] for each in Outcome)
    assert "the server decides" in by_name[check]["reason"]
    assert by_name[check]["outcome"] == "warned"
    (failed,) = [row for row in strict["checks"] if row["outcome"] == "failed"]
    assert (failed["document"], failed["heading"]) == ("protocol overview", "Errors")
    assert failed["sent"] == "StepRequest"
    assert "Status" in failed["received"]
    assert "a message" in failed["expected"]


def test_a_failure_is_shown_with_what_was_sent() -> None:
    check, session_class = BROKEN["sends what is no message"]
    with playground.serve(session_class) as address:
        result = invoke("check", address, f"--only={check}", code=1)
    for part in ("failed  " + check, "clause: ", "sent: StepRequest", "received: ", "expected: "):
        assert part in result.stdout
    assert "0 passed, 1 failed, 0 warned, 2 skipped" in result.stdout


def test_an_engine_that_dies_is_shown_with_its_last_words() -> None:
    mortal = ("python:tests.launch.test_restarting:Mortal", "--create", "end=os._exit(3)")
    text = " ".join(invoke("check", *mortal, code=1).stdout.split())
    assert "the server ended with exit code 3" in text
    assert text.count("Its last lines: ") == 1
    assert "no licence" in text


def health(*arguments: str, code: int = 0) -> str:
    return invoke("health", *arguments, code=code).output


def test_a_server_that_serves_is_a_line_and_success(peers: Peers) -> None:
    assert health(peers.catch).startswith(f"{peers.catch} is SERVING, answered in ")
    assert health(peers.catch, "--service", "dm_env_rpc.v1.Environment").startswith(
        f"dm_env_rpc.v1.Environment at {peers.catch} is SERVING"
    )
    told = json.loads(health(peers.catch, "--json"))
    assert 0 < told.pop("seconds") < 20
    assert told == {"address": peers.catch, "service": "", "status": "SERVING"}


def test_other_answers_are_told_and_end_with_1(peers: Peers) -> None:
    assert "SERVICE_UNKNOWN" in health(peers.catch, "--service", "other", code=1)
    with answering(lambda *_: b"\x08\x02") as address:
        assert f"{address} is NOT_SERVING" in health(address, code=1)
        assert json.loads(health(address, "--json", code=1))["status"] == "NOT_SERVING"
    with answering(None) as address:
        assert health(address, code=1) == (
            f"{address} answers, but has no health service (UNIMPLEMENTED)\n"
        )


def interrupted_import() -> ImportError:
    error = ImportError("initialization failed")
    error.__cause__ = KeyboardInterrupt()
    return error


REFUSAL = DmEnvRpcError(status_pb2.Status(code=5, message="no\nworld"))

ERRORS: list[tuple[BaseException, int, str]] = [
    (UsageError("what is wrong"), 2, "error: what is wrong"),
    (SpecError("a [bold]value[/]"), 2, "error: a [bold]value[/]"),
    (typer.BadParameter("x"), 2, "error: Invalid value: x; see dm-env-rpc --help"),
    (ConnectionLostError("gone"), 3, "error: gone"),
    (DeadlineExceededError("late"), 3, "error: late"),
    (REFUSAL, 1, "error: the server answered NOT_FOUND: no world"),
    (ProtocolError("broken"), 1, "error: broken"),
    (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device"),
    (BrokenPipeError(), 1, ""),
    (KeyboardInterrupt(), 130, "error: interrupted"),
    (interrupted_import(), 130, "error: interrupted"),
    (Terminated(), 143, "error: terminated"),
    (ZeroDivisionError("oh"), 70, "error: this is a bug in dm-env-rpc: ZeroDivisionError: oh"),
    (ImportError("no x"), 70, "error: this is a bug in dm-env-rpc: ImportError: no x"),
    (UsageError("\x1b[2J\x07"), 2, r"error: \x1b[2J\x07"),
]


@pytest.mark.parametrize(("error", "code", "line"), ERRORS, ids=[repr(row[0]) for row in ERRORS])
def test_an_error_is_a_line_and_a_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise error
    assert ended.value.exit_code == code
    shown = capsys.readouterr().err
    assert shown.startswith(line)
    assert shown.count("\n") == (1 if line else 0)


def test_exits_are_let_through() -> None:
    with pytest.raises(SystemExit), one_line_errors():
        sys.exit(4)
    with pytest.raises(typer.Exit), one_line_errors():
        raise typer.Exit(5)


def test_an_error_that_nobody_can_read_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("nobody is there")

    monkeypatch.setattr(consoles.console, "print", fail)
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise UsageError("what is wrong")
    assert ended.value.exit_code == 2


def test_warnings_are_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    failures.log_in_one_line()
    log = logging.getLogger("dm_env_rpc_client.tests")
    log.warning("two\nlines %s", "here")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    log.info("not told")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "warning: two lines here"
    assert second.startswith("error: it failed: ValueError: why (")
    assert second.endswith(")")


def test_without_arguments_there_is_help() -> None:
    assert "Examples:" in invoke().stdout
    shown = invoke("properties").stdout
    assert "list" in shown
    assert "bool" not in shown + invoke("--help").stdout


GROUP: Any = typer.main.get_command(app)
COMMANDS = [*(GROUP.commands.keys() - {"properties"})]
COMMANDS += [f"properties {name}" for name in GROUP.commands["properties"].commands]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_has_examples_of_the_command(command: str) -> None:
    text = invoke(*command.split(), "--help").stdout
    assert f"dm-env-rpc {command}" in text.split("Examples:")[1]
    assert "bool" not in text, "a flag takes no value"
    assert invoke(*command.split(), "-h").stdout == text


def test_the_version() -> None:
    assert invoke("--version").stdout == f"dm-env-rpc {__version__}\n"


def test_a_command_says_after_a_second_that_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
    ended = run_command("run", address, "--timeout", "2.5")
    assert ended.returncode == 3
    first, second = ended.stderr.strip().splitlines()
    told = rf"warning: no connection to {address} yet: Connection refused; trying again for [12] s"
    assert re.match(told, first)
    assert second.startswith(f"error: could not connect to {address} within 2.5 s: ")
