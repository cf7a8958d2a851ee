"""The command in surroundings that are not as usual, and interrupted: no traceback ever."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import dm_env
import pytest

from dm_env_rpc_client.server import Catch, Server, serve
from tests.cli.commands import ROOT, Peers, command, is_one_line_with, started
from tests.support.scripted import settles
from tests.support.stopwatch import patience

RESULTS = ["--help", "run {catch} -n 2", "inspect {catch} --json"]
SURROUNDINGS: dict[str, dict[str, str | None]] = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "a home that is none": {"HOME": "/nowhere", "XDG_CONFIG_HOME": None},
    "no TERM": {"TERM": None},
    "nonsense for a width": {"COLUMNS": "wide"},
    "no UTF-8": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "narrow": {"COLUMNS": "8", "LINES": "2"},
}


@pytest.mark.parametrize(
    ("surroundings", "line"),
    [
        *((each, "run {catch} -n 2") for each in [*SURROUNDINGS][:4]),
        *((each, "run --help") for each in [*SURROUNDINGS][4:]),
    ],
)
def test_surroundings_that_are_not_as_usual(peers: Peers, line: str, surroundings: str) -> None:
    arguments = line.format(**peers._asdict()).split()
    finished = command(*arguments, environment=SURROUNDINGS[surroundings])
    assert finished.returncode == 0, finished.stderr
    assert "Traceback" not in finished.stdout + finished.stderr


@pytest.mark.parametrize("line", RESULTS)
def test_output_that_nobody_reads_to_the_end(peers: Peers, line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        finished = command(*line.format(**peers._asdict()).split(), stdout=closed)
    assert (finished.returncode, finished.stderr) == (1, "")


@pytest.mark.parametrize("line", RESULTS)
def test_output_that_cannot_be_written(peers: Peers, line: str) -> None:
    with open("/dev/full", "w") as full:
        finished = command(*line.format(**peers._asdict()).split(), stdout=full)
    is_one_line_with(finished, 1, "No space left on device")


@pytest.mark.parametrize("closed", ["stdout", "stderr", "stdin"])
def test_streams_that_are_closed(peers: Peers, closed: str) -> None:
    closing = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}[closed]
    finished = command("inspect", peers.catch, "--json", redirection=closing)
    if closed == "stdout":
        is_one_line_with(finished, 1, "Bad file descriptor")
    else:
        assert finished.returncode == 0
        assert json.loads(finished.stdout)["address"] == peers.catch
        assert finished.stderr == ""


def test_arguments_that_are_no_text(peers: Peers) -> None:
    finished = command("run", peers.catch, "--create", os.fsdecode(b"\xff\xfe=1"))
    is_one_line_with(finished, 2, "its name is not valid text")
    finished = command("run", os.fsdecode(b"\xff"))
    is_one_line_with(finished, 2, "an address looks like")


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
@pytest.mark.parametrize("line", ["run {} -n 1000000", "check {} --max-steps 1000000"])
def test_signals_in_the_middle(line: str, number: signal.Signals, code: int, said: str) -> None:
    has_stepped = threading.Event()

    class Stepping(Catch):
        def step(self, action: Any) -> dm_env.TimeStep:
            has_stepped.set()
            return super().step(action)

    with serve(Stepping) as server:
        process = started(*line.format(server.address).split())
        assert has_stepped.wait(60)
        process.send_signal(number)
        out, errors = process.communicate(timeout=patience(60))
        assert process.returncode == code, errors
        assert errors.splitlines()[-1] == f"error: {said}"
        assert "Traceback" not in out + errors
        assert settles(lambda: server.world_count == 0, 20), "no world is left behind"


# Python runs this file first. It interrupts the process when a function begins, which may also be
# the body of a module; processes that it starts are left alone.
INTERRUPTING = """
import os, signal, sys

file, name = os.environ.pop("INTERRUPT_AT").split(":")

def interrupt(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name == name and code.co_filename.endswith(file):
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

sys.setprofile(interrupt)
"""

MOMENTS = [
    # Imports, before there is a command.
    "/cli/app.py:<module>",
    "/google/protobuf/__init__.py:<module>",
    # Typer builds the command line.
    "/typer/main.py:get_command",
    # The command runs, and imports more.
    "/cli/group.py:invoke",
    "/numpy/__init__.py:<module>",
    "/client/connecting.py:connect_with",
    "/environment/dm_env_adaptor.py:step",
    "/cli/consoles.py:print_json",
]


@pytest.fixture(scope="module")
def interrupting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupting")
    (folder / "sitecustomize.py").write_text(INTERRUPTING)
    return folder


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_at_any_moment(interrupting: Path, catch_server: Server, moment: str) -> None:
    variables: dict[str, str | None] = {
        "INTERRUPT_AT": moment,
        "PYTHONPATH": os.pathsep.join([str(interrupting), ROOT]),
    }
    finished = command("run", catch_server.address, "-n", "2", "--json", environment=variables)
    assert (finished.returncode, finished.stderr) == (130, "error: interrupted\n")
    assert finished.stdout == ""
    assert settles(lambda: catch_server.world_count == 0, 20), "no world is left behind"
