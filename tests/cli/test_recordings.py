"""`record`, `replay`, `export` and `inspect FILE`, as a person or a script would call them."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.recording import Recorder, read
from dm_env_rpc_client.server import Catch, Server, serve
from tests.cli.commands import address_of, ended, invoke, is_one_line_with, started
from tests.cli.terminals import COMMAND, Terminal
from tests.recording.sessions import assert_same, play
from tests.support.forks import run_command
from tests.support.scripted import settles


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(Catch) as running:
        yield running


@pytest.fixture(scope="module")
def recorded(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run.mcap"
    play(server.address, 22, record=path)
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_record_and_replay(server: Server, tmp_path: Path, number: int) -> None:
    path = str(tmp_path / "run.mcap")
    code = 143 if number == signal.SIGTERM else 0
    here = ("--address", "localhost:0", "--json")
    recording = started("record", path, "--upstream", server.address, *here)
    expected = play(server.address, 30)
    assert_same(expected, play(address_of(recording), 30))
    ended(recording, number, code)
    assert read(path).is_complete
    replaying = started("replay", path, *here)
    assert_same(expected, play(address_of(replaying), 30))
    ended(replaying, number, code)


def test_record_starts_the_server_if_it_is_told_to(tmp_path: Path) -> None:
    path = str(tmp_path / "run.mcap")
    upstream = "python:dm_env_rpc_client.server:Catch"
    recording = started("record", path, "--upstream", upstream, "--address=localhost:0", "--json")
    assert len(play(address_of(recording), 3)) == 4
    ended(recording, code=143)
    assert read(path).connections[1].address.startswith("unix:")


def test_inspect_shows_a_recording(recorded: Path) -> None:
    finished = invoke("inspect", str(recorded))
    assert finished.stderr == ""
    for part in ("Connections", "Episodes", "terminated", "interrupted", "5 episodes, 18 steps"):
        assert part in finished.stdout
    described = json.loads(invoke("inspect", str(recorded), "--json").stdout)
    assert described["complete"] is True
    assert [each["steps"] for each in described["episodes"]] == [4, 4, 4, 4, 2]
    assert {each["return"] for each in described["episodes"][:4]} <= {-1.0, 1.0}
    assert described["episodes"][0]["world"].startswith("world-")
    (connection,) = described["connections"]
    assert (connection["connection"], connection["transport"]) == (1, "auto")


def test_inspect_says_that_a_recorder_was_killed(recorded: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.mcap"
    content = recorded.read_bytes()
    cut.write_bytes(content[: content.rindex(b"\x0f\x04\x00\x00\x00\x00\x00\x00\x00")])
    finished = invoke("inspect", str(cut))
    assert "The file has no end" in finished.stdout
    assert "5 episodes" in finished.stdout
    assert json.loads(invoke("inspect", str(cut), "--json").stdout)["complete"] is False


def test_inspect_shows_what_is_not_broken(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path) as recorder:
        recording = recorder.connection("localhost:1", {})
        recording.request(b"")
        recording.answer(b"")
        recording.answer(b"")
        play(server.address, 22, record=recorder)
    finished = invoke("inspect", str(path), code=1)
    assert "5 episodes, 18 steps" in finished.stdout
    assert finished.stderr.count("\n") == 1
    assert "answer 2 of connection 1 breaks the protocol" in finished.stderr
    described = json.loads(invoke("inspect", str(path), "--json", code=1).stdout)
    assert len(described["episodes"]) == 5
    assert "answer 2 of connection 1" in described["error"]


@pytest.mark.terminal
def test_inspect_draws_an_image_on_a_terminal(recorded: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, rows=60) as terminal:
        terminal.run(f"{COMMAND} inspect {recorded}")
        terminal.waits_for("board, at the end of episode 1:")
        assert settles(lambda: "48;2;255;255;255m" in terminal.colours())


@pytest.mark.terminal
def test_record_shows_what_passes_on_a_terminal(server: Server, tmp_path: Path) -> None:
    with Terminal(tmp_path, columns=250) as terminal:
        upstream = f"--upstream {server.address} --address localhost:0"
        terminal.run(f"{COMMAND} record {tmp_path / 'run.mcap'} {upstream}")
        address = re.search(r"connect to (\S+:\d+); Ctrl-C", terminal.waits_for("requests: 0,"))
        assert address is not None
        with make(address[1]) as env:
            env.unroll({"paddle": [1] * 20})
            terminal.waits_for("clients: 1, requests: 22,")
        terminal.waits_for("clients: 0, requests: 24,")
        terminal.press("C-c")
        terminal.waits_for("stopping")


def test_export_to_minari(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("minari")
    environment = {"MINARI_DATASETS_PATH": str(tmp_path)}
    finished = run_command(
        "export", str(recorded), "catch/run-v0", "--to", "minari", environment=environment
    )
    assert (finished.returncode, finished.stderr) == (0, "wrote 5 episodes to catch/run-v0\n")
    assert (tmp_path / "catch" / "run-v0" / "data").is_dir()
    again = run_command("export", str(recorded), "catch/run-v0", environment=environment)
    is_one_line_with(again, 1, "cannot export to Minari")
    missing = run_command("export", str(tmp_path / "no"), "catch/no-v0", environment=environment)
    is_one_line_with(missing, 1, "No such file")
