"""Every command with all that can be wrong, and in odd surroundings: never a traceback.

Each case is a process of its own. It ends with a stable exit code and one line on stderr, which
says what is wrong and what would be right.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dm_env
import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.server import Catch, Server, serve
from tests.cli.commands import ROOT, Peers, command, is_one_line_with, started
from tests.support.forks import run_command
from tests.support.scripted import settles
from tests.support.stopwatch import patience

# An address is needed by these, and what follows it.
CONNECTING = {
    "run": [],
    "inspect": [],
    "check": [],
    "properties list": [],
    "properties get": ["key"],
    "properties set": ["key=1"],
}

NO_SERVERS = [
    ("{dead}", 3, "refused; check that the server is running and listening"),
    ("{http}", 1, "is not a gRPC server"),
    ("{silent}", 3, "check that this is the address of a dm_env_rpc server"),
    ("{hangs_up}", 3, "check the address"),
    ("no-such-host.invalid:1", 2, "not on this machine; pass --tls-ca"),
    ("192.0.2.1:50051", 2, "not on this machine; pass --tls-ca"),
    ("localhost", 2, "an address looks like localhost:50051"),
    ("http://localhost:50051", 2, "an address looks like localhost:50051"),
    ("unix:/no/such/socket", 3, "/no/such/socket"),
]


@pytest.mark.parametrize(
    ("name", "address", "code", "said"),
    [
        *(("inspect", *row) for row in NO_SERVERS),
        *((name, *row) for name in CONNECTING if name != "inspect" for row in NO_SERVERS[:2]),
        *((name, *NO_SERVERS[6]) for name in CONNECTING if name != "inspect"),
    ],
)
def test_addresses_at_which_there_is_no_server(
    peers: Peers, name: str, address: str, code: int, said: str
) -> None:
    filled = address.format(**peers._asdict())
    finished = run_command(*name.split(), filled, *CONNECTING[name], "--timeout=0.6")
    is_one_line_with(finished, code, said)


@pytest.mark.parametrize("name", [name for name in CONNECTING if name != "run"])
def test_a_missing_address_is_asked_for(name: str) -> None:
    is_one_line_with(
        run_command(*name.split()), 2, "Missing argument", f"see dm-env-rpc {name} --help"
    )


WRONG: list[tuple[str, int, str]] = [
    # Tries for ten seconds, during which the others run.
    ("serve dm-env-rpc://{dead} --protocol gym-socket", 3, "could not connect"),
    # Words that are no command or option.
    ("fly", 2, "No such command 'fly'"),
    ("rnu", 2, "run"),
    ("properties fly", 2, "No such command 'fly'"),
    ("run --epis 3", 2, "--episodes"),
    ("--verbose", 2, "No such option: --verbose"),
    ("run {catch} extra", 2, "extra"),
    # Values that options do not take.
    ("run {catch} --episodes 0", 2, "'--episodes'"),
    ("run {catch} --episodes many", 2, "'--episodes'"),
    ("run {catch} --max-steps -1", 2, "'--max-steps'"),
    ("run {catch} --seed -1", 2, "'--seed'"),
    ("run {catch} --timeout 0", 2, "more than 0, got 0"),
    ("run {catch} --keepalive-timeout 0", 2, "more than 0, got 0"),
    ("bench {catch} --seconds 0", 2, "seconds"),
    ("bench {broken} --create at=step", 1, "broken in step"),
    ("bench {catch} --policy os:sep", 2, "random or constant"),
    ("health {catch} --timeout 0", 2, "more than 0"),
    *(
        (f"health {{{peer}}} --timeout 0.3", 3, ":")
        for peer in ("dead", "silent", "hangs_up", "http")
    ),
    ("inspect localhost:1 --token tok-91c3", 2, "No such option"),
    ("serve catch --grace inf --address localhost:0", 2, "--grace must be"),
    ("health engine.example:443", 2, "--tls-ca"),
    (f"health {{catch}} --service {'x' * 128}", 2, "127 bytes"),
    ("serve catch --protocol gym-socket --dialect middle", 2, "middle"),
    ("serve gym-socket://localhost:5001/E?colour=red", 2, "must be gym-socket://HOST:PORT/NAME"),
    ("check {catch} --only nonsense", 2, "no check has 'nonsense' in its name"),
    ("properties list {catch} --depth 0", 2, "'--depth'"),
    ("properties list {catch} --interface x", 2, "'x'"),
    ("properties list {catch} --create rows=3", 2, "add --new-world"),
    ("properties list {catch} --join a=3", 2, "--world NAME or --new-world"),
    (
        "properties list {catch} --world w --new-world",
        2,
        "--world and --new-world cannot be combined",
    ),
    ("properties set {catch} key", 2, "such as physics.gravity=1.62"),
    ("play --fps 0", 2, "'--fps'"),
    ("play {catch} --rate 10", 2, "No such option"),
    # Settings, worlds and keys that the server refuses.
    ("run {catch} --create rows", 2, "expected NAME=VALUE, such as rows=6"),
    ("run {catch} --create rows=null", 2, "must not be null"),
    ("run {catch} --create rows=0", 1, "at least 2 rows"),
    ("run {catch} --create colour=red", 1, "settings: rows, columns, seed"),
    ("run {catch} --join colour=red", 1, "colour"),
    ("run {catch} --world nowhere", 1, "no world 'nowhere'"),
    ("run {catch} --world x --create a=1", 2, "--create cannot be combined"),
    ("check {catch} --required-create rows", 2, "'rows' is not among the create settings"),
    ("properties get {catch} nothing", 1, "no property 'nothing'"),
    # Environments and agents that fail, or are none.
    ("run {broken} --create at=__init__", 1, "broken in __init__"),
    ("run {broken} --create at=reset", 1, "broken in reset"),
    ("run {broken} --create at=step", 1, "broken in step"),
    ("inspect {broken} --create at=action_spec", 1, "broken in action_spec"),
    ("run {catch} --policy clever", 2, "unknown policy 'clever'; choose random, constant or"),
    ("run {catch} --policy os:nothing", 2, "has no 'nothing'"),
    ("run {catch} --policy os:sep", 2, "not a function"),
    ("run {catch} --policy badly_written:act", 2, "SyntaxError"),
    ("run {catch} --policy leaving:act", 2, "SystemExit"),
    ("run {catch} --policy wrong_agents:fails", 2, "ZeroDivisionError: division by zero"),
    ("check {catch} --json --policy wrong_agents:fails", 2, "wrong_agents.py, line 2"),
    ("run {catch} --policy wrong_agents:leaves", 2, "SystemExit"),
    ("run {catch} --policy wrong_agents:nothing", 2, "an action must be a mapping"),
    ("run {catch} --policy wrong_agents:too_much", 2, "outside its bounds [0, 2]"),
    ("run {catch} --policy wrong_agents:takes_none", 2, "TypeError"),
    ("serve hostile_module:make", 2, "hostile_module"),
    ("serve", 2, "no environment to serve was given; name one of these: catch,"),
    # Environments that cannot be made.
    ("serve json:dumps", 2, "missing a required argument: 'obj'"),
    ("serve json:dumps --create obj=1", 2, "the factory returned a str; expected a dm_env"),
    ("serve catch --create rows=-3", 2, "at least 2 rows"),
    ("serve catch --create colour=red", 2, "known settings: rows, columns, seed"),
    ("serve race --protocol dm-env-rpc --create players=0", 2, "at least 2 players"),
    ("serve wrong_agents:fails --create timestep=1 --create spec=1", 2, "ZeroDivisionError"),
    ("serve dm-env-rpc://{catch} --create rows=0", 1, "at least 2 rows"),
    ("serve catch --c-library lib.so:f", 2, "pass either an environment to serve"),
    ("serve --c-library lib.so", 2, "must be PATH:CONNECT"),
    ("serve --c-library ./no-such-lib.so:connect", 2, "there is no library"),
    ("serve --c-library lib.so:f --create width", 2, "expected NAME=VALUE"),
    ("serve --c-library lib.so:f --c-version 3.0", 2, "unknown EnvCApi version"),
    # Recordings.
    ("inspect no.mcap", 1, "No such file"),
    ("replay no.mcap", 1, "No such file"),
    ("replay run.mcap --address 0.0.0.0:0", 2, "--insecure"),
    ("record run.mcap --upstream localhost:1", 1, "file exists"),
    ("record a --upstream nowhere", 2, "looks like"),
    ("record a --upstream env.host:1", 2, "--tls-ca"),
    ("record a", 2, "--upstream"),
    ("export run.mcap a.parquet --to parquet", 2, "--to"),
    # Places where nothing can listen.
    ("serve catch --address 0.0.0.0:0", 2, "insecure"),
    ("serve catch --address localhost:99999", 2, "expected an address to listen on, such as"),
    ("serve catch --address {catch}", 1, "cannot listen"),
    ("serve catch --protocol gym-socket --address {catch}", 1, "in use"),
    (
        "serve catch --protocol gym-socket --processes 2",
        2,
        "does not support --processes; use --isolate",
    ),
    ("serve catch --processes 0", 2, "'--processes'"),
]


@pytest.fixture(scope="module")
def folder(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody may have lying around."""
    folder = tmp_path_factory.mktemp("mine")
    with make(peers.catch, record=folder / "run.mcap") as env:
        env.reset()
    (folder / "badly_written.py").write_text("def act(\n")
    (folder / "leaving.py").write_text("import sys\nsys.exit(5)\n")
    (folder / "hostile_module.py").write_text(
        "def __getattr__(name):\n    raise RuntimeError('nothing to see')\n"
    )
    (folder / "wrong_agents.py").write_text(
        "def fails(timestep, spec):\n    return 1 / 0\n"
        "def leaves(timestep, spec):\n    raise SystemExit(7)\n"
        "def nothing(timestep, spec):\n    return None\n"
        "def too_much(timestep, spec):\n    return {'paddle': 7}\n"
        "def takes_none():\n    return {}\n"
    )
    return folder


Finished = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def ended(peers: Peers, folder: Path) -> Iterator[dict[str, concurrent.futures.Future[Finished]]]:
    """How the wrong command lines ended; much of their time they wait, so several run at once."""
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        yield {
            line: executor.submit(run_command, *line.format(**peers._asdict()).split(), cwd=folder)
            for line, _, _ in WRONG
        }
        executor.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("line", "code", "said"), WRONG, ids=[line for line, _, _ in WRONG])
def test_wrong_command_lines(
    ended: dict[str, concurrent.futures.Future[Finished]], line: str, code: int, said: str
) -> None:
    is_one_line_with(ended[line].result(), code, said)


def test_with_a_variable_the_traceback_is_shown_too(peers: Peers, folder: Path) -> None:
    finished = run_command(
        *("run", peers.catch, "--policy=wrong_agents:fails"),
        environment={"DM_ENV_RPC_TRACEBACK": "1"},
        cwd=folder,
    )
    assert finished.returncode == 2
    assert "Traceback" in finished.stderr
    assert "return 1 / 0" in finished.stderr


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
