"""What users do wrong, and the words that they get."""

from __future__ import annotations

import concurrent.futures
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dm_env
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import ConnectionLostError, LaunchError, SpecError, server
from dm_env_rpc_client.cli import consoles
from dm_env_rpc_client.extras import install_command
from dm_env_rpc_client.server import Catch
from tests.mistakes.doors import connect_async, make_async
from tests.support.environments import Echo
from tests.support.forks import run_command
from tests.support.hidden import hide
from tests.support.programs import run_python


class Abstract(dm_env.Environment):
    """A dm_env.Environment without its methods."""


async def coroutine() -> Echo:
    return Echo()


def positional(length: int, /) -> Echo:
    return Echo(length)


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with server.serve(Catch, token="secret") as running:
        yield running.address


MEANT = "unexpected keyword argument 'requst_timeout'; did you mean 'request_timeout'?"

# Also what type checkers refuse.
make: Any = dm_env_rpc_client.make
connect: Any = dm_env_rpc_client.connect
BatchedEnvironment: Any = dm_env_rpc_client.BatchedEnvironment
serve: Any = server.serve
CALLS: dict[str, tuple[Callable[[str], Any], type[Exception], list[str]]] = {
    "make(address, requst_timeout=3)": (
        lambda address: make(address, requst_timeout=3), TypeError, [MEANT],
    ),
    "BatchedEnvironment(address, requst_timeout=3)": (
        lambda address: BatchedEnvironment(address, 2, requst_timeout=3), TypeError, [MEANT],
    ),
    "make(address, rows=3)": (
        lambda address: make(address, nested_tensors=False, rows=3), TypeError,
        ["settings are passed in a dictionary: make(address, {'rows': ...})"],
    ),
    "make_async(address, rows=3)": (
        lambda address: make_async(address, rows=3), TypeError,
        ["settings are passed in a dictionary: make(address, {'rows': ...})"],
    ),
    "connect(address, requst_timeout=3)": (
        lambda address: connect(address, requst_timeout=3), TypeError, [MEANT],
    ),
    "connect_async(address, requst_timeout=3)": (
        lambda address: connect_async(address, requst_timeout=3), TypeError, [MEANT],
    ),
    "make(Catch)": (
        lambda _: make(Catch), SpecError,
        ["such as 'localhost:50051', got the class Catch", "'python:dm_env_rpc_client.server"],
    ),
    "make(lambda: None)": (
        lambda _: make(lambda: None), SpecError,
        ["must return a launch.Launch", "returned NoneType"],
    ),
    "make(guarded)": (make, ConnectionLostError, ["UNAUTHENTICATED", "pass token= to make"]),
    "serve(Catch(), processes=2)": (
        lambda _: serve(Catch(), processes=2), SpecError,
        ["processes=2: an instance of Catch already exists", "pass a factory, such as its class"],
    ),
    "serve(abstract)": (
        lambda _: serve(Abstract), SpecError,
        ["Abstract is abstract; implement action_spec, observation_spec, reset, step"],
    ),
    "serve(coroutine)": (
        lambda _: serve(coroutine), SpecError, ["coroutine does not return an environment"],
    ),
    "serve(positional)": (
        lambda _: serve(positional), SpecError, ["requires the positional-only argument 'length'"],
    ),
    "make('gymnasium://CartPol-v1')": (
        lambda _: make("gymnasium://CartPol-v1"), LaunchError,
        ["error: cannot make gymnasium://CartPol-v1: "],
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_call(call: str, guarded: str) -> None:
    function, error, said = CALLS[call]
    with pytest.raises(error) as caught:
        function(guarded)
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize("reference", ["gymnasium://CartPole-v1"])
def test_environments_of_other_packages_are_served_for_a_command_and_for_make(
    reference: str,
) -> None:
    ended = run_command("run", reference, "--episodes", "1", "--max-steps", "3")
    assert ended.returncode == 0, ended.stderr
    with make(reference) as env:
        assert env.reset().first()


def test_the_package_is_the_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dm_env_rpc_client", "--version"],
        capture_output=True, check=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.stdout.startswith("dm-env-rpc")


IN_PLACE_OF_AN_ADDRESS = [
    *(
        (f"{command} python:nomod:X{more}", "cannot import 'nomod': ModuleNotFoundError")
        for command, more in {
            "run": "", "inspect": "", "check": "", "health": "", "bench": "", "play": "",
            "properties list": "", "properties get": " key", "properties set": " key=1",
            "record a.mcap --upstream": "",
        }.items()
    ),
    ("inspect python:os:nothing", "'os' has no 'nothing'"),
    ("inspect python:os:sep", "os:sep is not callable"),
    ("inspect python:bad_syntax:make", "cannot import 'bad_syntax': SyntaxError"),
    ("inspect python:leaves:make", "cannot import 'leaves': SystemExit"),
    ("inspect python:X", "must be given as MODULE:NAME"),
    ("inspect python:", "must be given as MODULE:NAME"),
    ("inspect gymnasium://Nope-v0", "cannot make gymnasium://Nope-v0: NameNotFound"),
    ("inspect gymnasium://", "cannot make gymnasium://: Error: Malformed environment ID"),
    ("inspect dm_control://cartpole", "error: "),  # Whether the package is there or not.
    ("inspect bsuite://nope/0", "error: "),
    ("inspect pettingzoo://nope", "error: "),
    ("inspect gymnasum://CartPole-v1", "an address looks like localhost:50051"),
    ("inspect process:", "expected process: followed by what to start"),
    ("inspect process:'engine", "cannot split the command"),
    ("inspect process:engine", "does not specify where to listen: include {port} or {socket} in"),
    ("inspect docker:", "expected docker: followed by what to start"),
    ("inspect unix:", "an address looks like localhost:50051"),
    ("inspect nomod:X", "and a server to start like process:COMMAND"),
]  # fmt: skip
"""What names no server and nothing that starts one."""

TO_SERVE = [
    ("python:nomod:X", "for what connects to one; serve takes nomod:X"),
    ("python:", "serve takes MODULE:FACTORY"),
    ("process:./engine", "serve takes MODULE:FACTORY"),
    ("docker:image", "serve takes MODULE:FACTORY"),
    ("nomod:X", "cannot import 'nomod'"),
    ("os:nothing", "'os' has no 'nothing'"),
    ("os:sep", "os:sep is not callable"),
    ("bad_syntax:make", "cannot import 'bad_syntax': SyntaxError"),
    ("leaves:make", "cannot import 'leaves': SystemExit"),
    ("nomod:X --python /no/such/python", "cannot be started: [Errno 2] No such file"),
    (f"nomod:X --python {sys.executable}", "cannot import 'nomod'"),
    ("os:sep --python true", "is not a Python interpreter"),
]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("mine")
    (folder / "bad_syntax.py").write_text("def make(:")
    (folder / "leaves.py").write_text("import sys\n\nsys.exit('no licence')")
    lines = [line for line, _ in IN_PLACE_OF_AN_ADDRESS]
    lines += [f"serve {what} --address localhost:0" for what, _ in TO_SERVE]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ended = pool.map(lambda line: run_command(*line.split(" "), cwd=folder), lines)
        return dict(zip(lines, ended, strict=True))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *IN_PLACE_OF_AN_ADDRESS,
        *((f"serve {what} --address localhost:0", s) for what, s in TO_SERVE),
    ],
)
def test_a_source_that_cannot_be_read_or_imported_is_wrong_usage(
    line: str, said: str, commands: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    ended = commands[line]
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: ")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_that_ends_for_another_reason_is_no_wrong_usage(tmp_path: Path) -> None:
    """Its exit code is its own, and the text has been understood."""
    (tmp_path / "engine").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "engine").chmod(0o755)
    ended = run_command("inspect", "process:./engine {port}", cwd=tmp_path)
    assert ended.returncode == 3
    assert "ended with exit code 2: ./engine" in ended.stderr


@pytest.mark.parametrize(("total", "shown"), [(None, False), (5, True)])
def test_layers_are_shown_once_there_are_any(total: int | None, shown: bool) -> None:
    written = io.StringIO()
    screen = consoles.Console(file=written, force_terminal=True, width=100)
    with consoles.progress(consoles.Layers(), screen=screen) as bar:
        bar.add_task("pulling", total=total, completed=2)
    assert ("2/5 layers" in written.getvalue()) is shown
    assert "/?" not in written.getvalue()


MISSING: dict[str, list[tuple[str, str]]] = {
    "stable_baselines3": [("import dm_env_rpc_client.adaptors.sb3", "sb3")],
    "gymnasium": [
        ("import dm_env_rpc_client.adaptors.sb3", "sb3"),
        ("import dm_env_rpc_client.adaptors.vector", "gymnasium"),
        ("import dm_env_rpc_client.adaptors.gymnasium", "gymnasium"),
        ("from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv", "gymnasium"),
        ("from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import as_environment", "gymnasium"),
        ("import dm_env_rpc_client.gymnasium", "gymnasium"),
        ("import dm_env_rpc_client.adaptors.pettingzoo", "pettingzoo"),
        ("import dm_env_rpc_client.bridges.gym_socket", "gymnasium"),
    ],
    "pettingzoo": [
        ("import dm_env_rpc_client.adaptors.pettingzoo", "pettingzoo"),
        ("from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv", "pettingzoo"),
        ("import dm_env_rpc_client.adaptors.pettingzoo.game", "pettingzoo"),
    ],
    "anywidget": [("import dm_env_rpc_client.notebook", "notebook")],
    "ipywidgets": [("from dm_env_rpc_client.notebook import explore", "notebook")],
    "mcap": [
        ("import dm_env_rpc_client.recording", "record"),
        ("from dm_env_rpc_client import make; make('localhost:1', record='a.mcap')", "record"),
    ],
    "lz4": [("from dm_env_rpc_client.recording import read", "record")],
    "zstandard": [("from dm_env_rpc_client.recording import replay", "record")],
    "minari": [("import dm_env_rpc_client.adaptors.minari", "minari")],
    "cffi": [
        (
            "from dm_env_rpc_client.bridges import env_c_api as c; c.EnvCApiEnvironment('a', 'b')",
            "c",
        ),
    ],
    "ray": [
        ("from dm_env_rpc_client.distributed import RayServers; RayServers('a:b', 1)", "ray"),
        ("from dm_env_rpc_client.distributed import RayRollouts as R; R(lambda: 0, int)", "ray"),
    ],
}
"""What is done without a package, and the extra that its error names."""

TRIED = """
import json, sys
said = []
for line in json.loads(sys.argv[1]):
    try:
        exec(line, {})
    except ImportError as error:
        said.append([type(error).__name__, error.name, str(error)])
    else:
        said.append(["nothing", "", ""])
print(json.dumps(said))
"""


@pytest.mark.parametrize("package", MISSING)
def test_a_missing_package_is_told_with_its_extra(package: str, tmp_path: Path) -> None:
    done = [line for line, _ in MISSING[package]]
    hidden = hide(tmp_path, [package])
    ran = run_python("-c", TRIED, json.dumps(done), environment=hidden, folder=tmp_path)
    for line, extra, (error, missing, text) in zip(
        done, (each for _, each in MISSING[package]), json.loads(ran.stdout), strict=True
    ):
        assert error == "ModuleNotFoundError", line
        assert missing.partition(".")[0] == package
        assert f"No module named '{package}" in text
        assert f" the extra: {install_command(extra)}" in text, line


COMMANDS = [
    ("cffi", "serve --c-library ./a.so:connect", "c"),
    ("gymnasium", "serve gymnasium://CartPole-v1", "gymnasium"),
    ("gymnasium", "serve catch --protocol gym-socket", "gymnasium"),
    ("gymnasium", "serve gym-socket://localhost:1/a", "gymnasium"),
    ("pettingzoo", "serve pettingzoo://classic/rps_v2", "pettingzoo"),
    ("pygame", "play localhost:1", "play"),
    ("mcap", "record a.mcap --upstream localhost:1", "record"),
    ("minari", "export a.mcap --to minari a/b-v0", "minari"),
    ("typer", "run", "cli"),
    ("rich", "--help", "cli"),
]


@pytest.mark.parametrize(("package", "line", "extra"), COMMANDS)
def test_a_command_without_its_package_is_wrong_usage(
    package: str, line: str, extra: str, tmp_path: Path
) -> None:
    command = ("-m", "dm_env_rpc_client", *line.split())
    ran = run_python(*command, code=2, environment=hide(tmp_path, [package]), folder=tmp_path)
    (said,) = ran.stderr.splitlines()
    assert said.startswith("error: ")
    assert said.endswith(install_command(extra))
