"""What `serve` tells while it serves, in terminals, log lines, and the background of a shell."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dm_env_rpc_client import Connection, DmEnvRpcError, connect, create_world, dm_env_rpc_pb2, make
from tests.cli import commands
from tests.cli.commands import address_of, ended, started
from tests.cli.terminals import COMMAND, Terminal
from tests.snippets import snippets
from tests.support.ports import HeldPort
from tests.support.programs import ROOT
from tests.support.scripted import settles
from tests.support.stopwatch import patience

BROKEN = "tests.support.environments:Broken"


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with Terminal(tmp_path, columns=130) as opened:
        yield opened


def address_on(terminal: Terminal) -> str:
    found = re.search(r"at (localhost:\d+);", terminal.waits_for(r"at localhost:\d+;"))
    assert found is not None
    return found[1]


def row(terminal: Terminal, *cells: str) -> None:
    """Waits for a row of the table that begins with these cells."""
    terminal.waits_for(r"\n *" + " +".join(cells))


@pytest.mark.terminal
@pytest.mark.parametrize("options", ["", " --processes 2"])
def test_on_a_terminal_there_is_a_table_that_changes(terminal: Terminal, options: str) -> None:
    terminal.run(f"{COMMAND} serve {BROKEN} --address localhost:0 --no-try{options}")
    address = address_on(terminal)
    row(terminal, "clients", "worlds", "agents", "steps/s", "steps", "refused", "errors", "up")
    row(terminal, "0", "0", "0", "0", "0", "0", "0", "0:00")
    with make(address, {"at": "step"}) as env:
        env.reset()
        row(terminal, "1", "1", "1", r"\d+", "1", "0", "0", "0:00")
        with pytest.raises(DmEnvRpcError, match="broken in step"):
            env.step({"a": 1})
        with pytest.raises(DmEnvRpcError, match="known settings"):
            create_world(env.connection, {"colour\x1b[31m": "red"})
        row(terminal, "1", "1", "1", r"\d+", "2", "1", "1", "0:00")
        terminal.waits_for(r"\d\d:\d\d:\d\d error: a step request of .* failed: RuntimeError: brok")
        shown = terminal.waits_for(r"\d\d:\d\d:\d\d info: refused a create_world request of")
        assert "Traceback" not in shown
        assert "connected" not in shown
    row(terminal, "0", "0", "0", r"\d+", "2", "1", "1", "0:00")
    terminal.press("C-c")
    shown = terminal.waits_for("stopping")
    assert shown.count("steps/s") == 1, shown
    assert terminal.state() == {"alternate": "0", "cursor": "1"}


@pytest.mark.terminal
@pytest.mark.parametrize("option", ["--verbose", "--json"])
def test_on_a_terminal_there_are_log_lines_if_asked_for(terminal: Terminal, option: str) -> None:
    terminal.run(f"{COMMAND} serve catch --address localhost:0 {option}")
    shown = terminal.waits_for(r"localhost:[1-9]\d+")
    address = re.findall(r"localhost:[1-9]\d+", shown)[-1]
    make(address).close()
    shown = terminal.waits_for(" disconnected")
    assert "steps/s" not in shown
    assert ("sends a create_world request" in shown) == (option == "--verbose")
    terminal.press("C-c")
    terminal.waits_for("stopping")


@contextlib.contextmanager
def logged(*options: str) -> Iterator[tuple[str, list[str]]]:
    """The command away from terminals: its address, and at the end the lines on stderr."""
    process = started("serve", BROKEN, "--no-try", "--address", "localhost:0", *options)
    lines: list[str] = []
    yield address_of(process), lines
    lines += ended(process).splitlines()
    lines.remove("stopping")  # A client may be seen to go after it.


def use(address: str) -> None:
    """Connects, is refused once, and makes the environment fail once."""
    with make(address, {"at": "step"}) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="known settings"):
            create_world(env.connection, {"colour": 1})
        with pytest.raises(DmEnvRpcError, match="broken in step"):
            env.step({"a": 1})


LOOPBACK = r"(ipv4:127\.0\.0\.1|ipv6:%5B::1%5D)"
EXPECTED = [
    ("info", rf"{LOOPBACK}:\d+ connected"),
    ("info", rf"refused a create_world request of {LOOPBACK}:.*known settings: at"),
    ("error", rf"a step request of {LOOPBACK}:\d+ failed"),
    ("info", rf"{LOOPBACK}:\d+ disconnected"),
]


def test_away_from_a_terminal_clients_refusals_and_failures_are_logged() -> None:
    with logged() as (address, lines):
        use(address)
    begun = datetime.datetime.now(datetime.timezone.utc)
    with logged("--json") as (address, objects):
        use(address)
    assert len(lines) == len(objects) == len(EXPECTED), (lines, objects)
    records = [json.loads(each) for each in objects]
    for line, record, (level, text) in zip(lines, records, EXPECTED, strict=True):
        assert re.match(rf"\d\d:\d\d:\d\d {level}: {text}", line), line
        assert record["level"] == level
        assert re.match(text, record["message"])
        age = datetime.datetime.fromisoformat(record["time"]) - begun
        assert -1 < age.total_seconds() < 60
    assert "RuntimeError: broken in step" in lines[2]
    assert "RuntimeError: broken in step" in records[2]["error"]


def test_verbose_tells_of_every_request_but_steps() -> None:
    with logged("--verbose") as (address, lines):
        use(address)
    told = [line.split(" sends a ")[1] for line in lines if " sends a " in line]
    kinds = ["create_world", "join_world", "create_world", "leave_world", "destroy_world"]
    assert told == [f"{kind} request" for kind in kinds]


def test_worlds_of_clients_that_are_gone_end() -> None:
    with logged("--idle-seconds", "0.2") as (address, lines):
        with connect(address) as connection:
            world = create_world(connection, {"at": "nowhere"})
        with connect(address) as connection:
            assert settles(lambda: not _exists(connection, world))
    assert any(f"world {world!r} is destroyed" in line for line in lines), lines


def _exists(connection: Connection, world: str) -> bool:
    try:
        connection.send(dm_env_rpc_pb2.ResetWorldRequest(world_name=world))
    except DmEnvRpcError as error:
        return "no world" not in str(error)
    return True


SERVE = shlex.join([*commands.COMMAND, "serve", "catch", "--address", "localhost:0"])


@contextlib.contextmanager
def in_a_shell(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs a script without job control; all that it has started ends with the block."""
    pipe = subprocess.PIPE
    scripts = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        ["sh", "-c", script], cwd=folder, stdout=pipe, stderr=pipe, text=True,
        start_new_session=True, env=variables,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("command", ["serve", "replay"])
def test_what_a_script_starts_in_the_background_is_stopped_by_sigterm(
    command: str, tmp_path: Path
) -> None:
    line = SERVE
    if command == "replay":
        recording = tmp_path / "run.mcap"
        with make("python:dm_env_rpc_client.server:Catch", record=str(recording)) as env:
            env.reset()
        line = shlex.join([*commands.COMMAND, "replay", str(recording), "--address", "localhost:0"])
    script = f'{line} &\necho $!\nwait $!\necho "ended with $?"'
    with in_a_shell(script, tmp_path) as shell:
        assert shell.stdout is not None
        assert shell.stderr is not None
        number = int(shell.stdout.readline())
        said = shell.stderr.readline()
        assert said.rstrip().endswith("; SIGTERM stops")
        address = re.findall(r"localhost:\d+", said)[0]
        os.kill(number, signal.SIGINT)
        with connect(address):  # It serves on.
            pass
        os.kill(number, signal.SIGTERM)
        out, errors = shell.communicate(timeout=patience(30))
    code = "0" if command == "serve" else "143"
    assert (out, "Traceback" in errors) == (f"ended with {code}\n", False), errors


def test_the_shell_of_the_first_server_runs_as_a_script(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorials" / "first-server.md").read_text()
    (tmp_path / "thermostat.py").write_text(snippets(page)[0])
    script = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[-1]
    assert script.splitlines()[0].endswith(" &")
    with HeldPort() as port:
        script = script.replace("localhost:50051", port.address)
        first, rest = script.split(" &\n")
        script = f"set -e\n{first} --address {port.address} &\n{rest}wait $!\n"
        with in_a_shell(script, tmp_path) as shell:
            out, errors = shell.communicate(timeout=patience(100))
    assert shell.returncode == 0, (out, errors)
    assert "temperature" in out  # inspect
    assert "5 episodes, 250 steps" in out  # run
    assert " 0 failed" in out  # check
    assert "stopping" in errors
