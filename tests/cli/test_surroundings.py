"""The command in surroundings that are not as usual, and interrupted: no traceback ever."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from dm_env_rpc_client.server import Server
from tests.cli.commands import Peers, command, is_one_line_with, started
from tests.scripted import settles

RESULTS = [
    "--help",
    "run {catch} -n 2",
    "inspect {catch} --json",
    "check {catch} --only a_world_can",
    "properties list {catch} --json",
]
SURROUNDINGS: dict[str, dict[str, str | None]] = {
    "no UTF-8": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "no home": {"HOME": None, "XDG_CONFIG_HOME": None},
    "a home that is none": {"HOME": "/nowhere"},
    "TERM=dumb": {"TERM": "dumb"},
    "no TERM": {"TERM": None},
    "narrow": {"COLUMNS": "8", "LINES": "2"},
    "no width": {"COLUMNS": "0"},
    "nonsense for a width": {"COLUMNS": "wide"},
    "forced colours": {"FORCE_COLOR": "1"},
}


@pytest.mark.parametrize(
    ("surroundings", "line"),
    [
        *((surroundings, "run {catch} -n 2") for surroundings in SURROUNDINGS),
        ("no UTF-8", "run --help"),
        ("narrow", "run --help"),
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
    number = {"stdin": 0, "stdout": 1, "stderr": 2}[closed]
    finished = command(
        "inspect", peers.catch, "--json", preexec_fn=functools.partial(os.close, number)
    )
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


def test_what_a_server_says_does_not_control_the_terminal(peers: Peers) -> None:
    finished = command("run", peers.broken, "--create=at=step", "--create=kind=\x1b[2J\x07")
    assert "\x1b" not in finished.stderr
    finished = command("run", peers.catch, "--world", "\x1b[2J\x07")
    is_one_line_with(finished, 1, "no world")
    assert "\x1b" not in finished.stderr


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
@pytest.mark.parametrize("line", ["run {} -n 1000000", "check {} --max-steps 1000000"])
def test_signals_in_the_middle(
    catch_server: Server, line: str, number: signal.Signals, code: int, said: str
) -> None:
    process = started(*line.format(catch_server.address).split())
    assert settles(lambda: catch_server.world_count > 0, 20)
    time.sleep(0.1)
    process.send_signal(number)
    out, errors = process.communicate(timeout=20)
    assert process.returncode == code, errors
    assert errors.splitlines()[-1] == f"error: {said}"
    assert "Traceback" not in out + errors
    assert settles(lambda: catch_server.world_count == 0), "no world is left behind"


def test_ctrl_c_at_any_moment() -> None:
    for moment in (0.15, 0.25, 0.35, 0.45, 0.55, 0.7):
        process = started("run", "-n", "1000000", start_new_session=True)
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        # Python itself may end by the signal, as it does when the import of a module was
        # interrupted; to a shell the code is 130 either way.
        assert process.returncode in (130, -signal.SIGINT), (moment, errors)
        # Before the first line of the command has run, it is Python that has the word.
        assert errors == "error: interrupted\n" or "entry.py" not in errors, moment


def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    server = started("serve", "catch", "--address=localhost:0", "--json")
    assert server.stdout is not None
    address = json.loads(server.stdout.readline())["address"]
    process = started("run", address, "-n", "1000000")
    time.sleep(1.5)
    server.kill()
    server.communicate(timeout=20)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 3, errors
    assert re.fullmatch(r"error: .*\n", errors)
    assert out == ""
