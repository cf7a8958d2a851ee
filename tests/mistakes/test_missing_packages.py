"""A package of an extra is missing: what says which extra, and how to install it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dm_env_rpc_client.extras import install_command
from tests.support.hidden import hide
from tests.support.programs import run_python

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
