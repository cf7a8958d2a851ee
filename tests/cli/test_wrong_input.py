"""Every command as somebody new would try it, with all that can be wrong: no traceback ever.

Each case is a process of its own. It ends with a stable exit code and one line on stderr,
which says what is wrong and what would be right.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dm_env_rpc_client.server import Catch, Server, serve
from tests.environments import Broken
from tests.scripted import settles

COMMAND = [sys.executable, "-m", "dm_env_rpc_client.cli"]
ROOT = str(Path(__file__).resolve().parents[2])

# An address is needed by these, and what follows it.
CONNECTING = {
    "run": [],
    "inspect": [],
    "check": [],
    "properties list": [],
    "properties get": ["key"],
    "properties set": ["key=1"],
}


def command(
    *arguments: str, environment: dict[str, str | None] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command and returns how it ended."""
    variables: dict[str, str | None] = {**os.environ, "PYTHONPATH": ROOT, **(environment or {})}
    kept = {name: value for name, value in variables.items() if value is not None}
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        [*COMMAND, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        env=kept,
        timeout=60,
        check=False,
        **options,
    )


def is_one_line_with(finished: subprocess.CompletedProcess[str], code: int, *said: str) -> None:
    """Asserts that a command ended as it should when something is wrong."""
    everything = (finished.stdout or "") + finished.stderr
    assert "Traceback" not in everything
    assert finished.returncode == code, everything
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("error: ")
    for part in said:
        assert part in lines[0]
    assert not finished.stdout


class Peers(NamedTuple):
    """What may listen at an address. Each is a place to put in `{...}` of an argument."""

    catch: str
    broken: str
    http: str
    silent: str
    hangs_up: str
    dead: str


@contextlib.contextmanager
def listening(answer: Any) -> Iterator[str]:
    """A TCP server that does with each connection what a function does."""
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    answer(connection)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for connection in connections:
                connection.close()


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with (
        serve(Catch) as catch,
        serve(Broken) as broken,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as web,
        listening(lambda connection: None) as silent,
        listening(lambda connection: connection.close()) as hangs_up,
        socket.socket() as unused,
    ):
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        # Bound but not listening: nobody else takes the port, and connections are refused.
        unused.bind(("127.0.0.1", 0))
        yield Peers(
            catch.address,
            broken.address,
            f"127.0.0.1:{web.server_port}",
            silent,
            hangs_up,
            f"127.0.0.1:{unused.getsockname()[1]}",
        )
        web.shutdown()
        thread.join(5)


NO_SERVERS = [
    ("{dead}", 3, "refused; check that the server runs and listens there"),
    ("{http}", 1, "is no gRPC server"),
    ("{silent}", 3, "is that the address of a dm_env_rpc server?"),
    ("{hangs_up}", 3, "check the address"),
    ("no-such-host.invalid:1", 2, "not on this machine; --insecure"),
    ("192.0.2.1:50051", 2, "not on this machine; --insecure"),
    ("localhost", 2, "an address looks like localhost:50051"),
    ("http://localhost:50051", 2, "an address looks like localhost:50051"),
    ("localhost:99999", 2, "an address looks like localhost:50051"),
    ("localhost:port", 2, "an address looks like localhost:50051"),
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
    finished = command(*name.split(), filled, *CONNECTING[name], "--timeout=0.6")
    is_one_line_with(finished, code, said)


@pytest.mark.parametrize("name", [name for name in CONNECTING if name != "run"])
def test_a_missing_address_is_asked_for(name: str) -> None:
    is_one_line_with(command(*name.split()), 2, "Missing argument", f"see dm-env-rpc {name} --help")


WRONG: list[tuple[str, int, str]] = [
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
    ("run {catch} --seed x", 2, "'--seed'"),
    ("run {catch} --seed -1", 2, "'--seed'"),
    ("run {catch} --timeout nan", 2, "more than 0, got nan"),
    ("run {catch} --timeout 0", 2, "more than 0, got 0"),
    ("run {catch} --timeout -5", 2, "more than 0, got -5"),
    ("run {catch} --timeout inf", 2, "more than 0, got inf"),
    ("check {catch} --max-steps 0", 2, "'--max-steps'"),
    ("check {catch} --companions x", 2, "'--companions'"),
    ("check {catch} --only nonsense", 2, "no check has 'nonsense' in its name"),
    ("serve catch --max-connections 0", 2, "'--max-connections'"),
    ("serve catch --protocol gopher", 2, "gopher"),
    ("properties list {catch} --depth 0", 2, "'--depth'"),
    ("properties list {catch} --interface x", 2, "'x'"),
    ("properties list {catch} --create rows=3", 2, "add --new-world"),
    ("properties list {catch} --join a=3", 2, "--world NAME or --new-world"),
    ("properties list {catch} --world w --new-world", 2, "--world is for a world that exists"),
    ("properties set {catch} key", 2, "looks like physics.gravity=1.62"),
    ("properties set {catch} =1", 2, "looks like physics.gravity=1.62"),
    ("play --rate 0", 2, "more than 0"),
    ("play --rate nan", 2, "more than 0"),
    # Settings, worlds and keys that the server refuses.
    ("run {catch} --create rows", 2, "a setting looks like rows=6"),
    ("run {catch} --create =6", 2, "a setting looks like rows=6"),
    ("run {catch} --create rows=null", 2, "no value"),
    ("run {catch} --create rows=0", 1, "at least 2 rows"),
    ("run {catch} --create rows=many", 1, "does not take these settings"),
    ("run {catch} --create colour=red", 1, "settings: rows, columns, seed"),
    ("run {catch} --join colour=red", 1, "colour"),
    ("run {catch} --world nowhere", 1, "no world 'nowhere'"),
    ("run {catch} --world x --create a=1", 2, "--create is for"),
    ("inspect {catch} --world nowhere", 1, "no world 'nowhere'"),
    ("check {catch} --required-create rows", 2, "'rows' is not among the create settings"),
    ("properties get {catch} nothing", 1, "no property 'nothing'"),
    ("properties set {catch} nothing=1", 1, "no property 'nothing'"),
    ("properties list {catch} nothing", 1, "no property 'nothing'"),
    ("properties list {catch} --interface legacy", 1, "no payload that this server knows"),
    # Environments and agents that fail, or are none.
    ("run {broken} --create at=__init__", 1, "broken in __init__"),
    ("run {broken} --create at=reset", 1, "broken in reset"),
    ("run {broken} --create at=step", 1, "broken in step"),
    ("inspect {broken} --create at=action_spec", 1, "broken in action_spec"),
    ("run {catch} --policy clever", 2, "no policy 'clever'; choose random, constant or"),
    ("run {catch} --policy nowhere:act", 2, "cannot import 'nowhere'"),
    ("run {catch} --policy os:nothing", 2, "has no 'nothing'"),
    ("run {catch} --policy os:sep", 2, "no function"),
    ("run {catch} --policy badly_written:act", 2, "SyntaxError"),
    ("run {catch} --policy leaving:act", 2, "SystemExit"),
    ("run {catch} --policy wrong_agents:fails", 2, "ZeroDivisionError: division by zero"),
    ("check {catch} --json --policy wrong_agents:fails", 2, "wrong_agents.py, line 2"),
    ("run {catch} --policy wrong_agents:leaves", 2, "SystemExit"),
    ("run {catch} --policy wrong_agents:nothing", 2, "an action is a mapping"),
    ("run {catch} --policy wrong_agents:too_much", 2, "outside its bounds [0, 2]"),
    ("run {catch} --policy wrong_agents:takes_none", 2, "TypeError"),
    ("check {catch} --policy wrong_agents:missing", 2, "has no 'missing'"),
    ("serve nonsense", 2, "looks like MODULE:NAME"),
    ("serve nowhere:make", 2, "cannot import 'nowhere'"),
    ("serve badly_written:make", 2, "SyntaxError"),
    ("serve leaving:make", 2, "SystemExit"),
    ("serve hostile_module:make", 2, "hostile_module"),
    ("serve os:sep", 2, "not callable"),
    ("serve", 2, "name what to serve"),
    ("serve catch --c-library lib.so:f", 2, "name what to serve"),
    ("serve ftp://somewhere", 2, "no environments at ftp://"),
    ("serve gym-socket://localhost:5001", 2, "looks like gym-socket://HOST:PORT/NAME"),
    ("serve --c-library lib.so", 2, "looks like PATH:CONNECT"),
    ("serve --c-library ./no-such-lib.so:connect", 2, "there is no library"),
    ("serve catch --c-version 9.9 --create rows", 2, "a setting looks like rows=6"),
    # Places where nothing can listen.
    ("serve catch --address 0.0.0.0:0", 2, "insecure"),
    ("serve catch --address nonsense", 2, "looks like localhost:50051"),
    ("serve catch --address localhost:99999", 2, "looks like localhost:50051"),
    ("serve catch --address {catch}", 1, "cannot listen"),
    ("serve catch --protocol gym-socket --address {catch}", 1, "in use"),
    ("serve catch --protocol gym-socket --address 5001", 2, "looks like localhost:50051"),
    ("serve catch --protocol gym-socket --address 0.0.0.0:0", 2, "insecure"),
    # Play has no terminal here.
    ("play {catch}", 2, "needs a terminal, but the standard input is none"),
    ("play {catch} --keys left", 2, "needs a terminal"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody may have lying around."""
    folder = tmp_path_factory.mktemp("mine")
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
            line: executor.submit(command, *line.format(**peers._asdict()).split(), cwd=folder)
            for line, _, _ in WRONG
        }
        executor.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("line", "code", "said"), WRONG, ids=[line for line, _, _ in WRONG])
def test_wrong_command_lines(
    ended: dict[str, concurrent.futures.Future[Finished]], line: str, code: int, said: str
) -> None:
    is_one_line_with(ended[line].result(), code, said)


def test_with_a_variable_the_traceback_is_shown_too(peers: Peers, folder: Path) -> None:
    finished = command(
        *("run", peers.catch, "--policy=wrong_agents:fails"),
        environment={"DM_ENV_RPC_TRACEBACK": "1"},
        cwd=folder,
    )
    assert finished.returncode == 2
    assert "Traceback" in finished.stderr
    assert "return 1 / 0" in finished.stderr


# What is around the command.

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
    is_one_line_with(finished, 2, "its name is no text")
    finished = command("run", os.fsdecode(b"\xff"))
    is_one_line_with(finished, 2, "an address looks like")


def test_what_a_server_says_does_not_control_the_terminal(peers: Peers) -> None:
    finished = command("run", peers.broken, "--create=at=step", "--create=kind=\x1b[2J\x07")
    assert "\x1b" not in finished.stderr
    finished = command("run", peers.catch, "--world", "\x1b[2J\x07")
    is_one_line_with(finished, 1, "no world")
    assert "\x1b" not in finished.stderr


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT},
        **options,
    )


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
