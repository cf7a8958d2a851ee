"""Environments that `serve` is told by a text, as the command and `make` are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import DmEnvRpcError, SpecError, connect, create_world, make
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.server import Catch, serve
from tests.support.environments import Echo
from tests.support.forks import run_command


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("text", "needs", "action"),
    [
        ("catch", "dm_env", "paddle"),
        ("gymnasium://CartPole-v1", "gymnasium", "action"),
        ("dm_control://cartpole/swingup", "dm_control", "action"),
        ("bsuite://catch/0", "bsuite", "action"),
        ("tests.support.environments:Echo", "dm_env", "value"),
    ],
)
def test_a_text_names_an_environment(
    text: str, needs: str, action: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log to where it runs.
    with serve(text) as server, make(server.address) as env:
        assert env.reset().first()
        spec = env.action_spec()[action]
        assert not env.step({action: np.ones(spec.shape, spec.dtype)}).first()


@pytest.mark.filterwarnings("ignore")
def test_a_text_names_a_game() -> None:
    with serve("pettingzoo://classic/rps_v2") as server:
        env = RemoteParallelEnv(server.address)
        assert len(env.reset()[0]) == 2
        env.close()
    with serve("race") as server, connect(server.address) as connected:
        assert create_world(connected, {"players": 3}) == "world-1"


def test_a_text_names_the_environment_of_another_server() -> None:
    with (
        serve(Catch) as catch,
        serve(f"dm-env-rpc://{catch.address}") as server,
        make(server.address, {"rows": 4}) as env,
    ):
        assert env.reset().observation["board"].shape == (4, 5)
    with (
        gym_socket.serve({"Echo": Echo}, "localhost:0") as own,
        serve(f"gym-socket://{own.address}/Echo") as server,
        make(server.address) as env,
    ):
        assert env.reset().first()


def test_texts_in_a_dict_and_in_several_processes() -> None:
    named: dict[str, Any] = {"catch": "catch", "pole": "gymnasium://CartPole-v1"}
    with serve(named, processes=2) as server:
        for name in named:
            with make(server.address, {"environment": name}) as env:
                assert env.reset().first()


@pytest.mark.parametrize(
    "text",
    [
        "cathc", "nonsense", "CartPole-v1", "gymnasum://CartPole-v1", "dm_control://cartpole",
        "gym-socket://localhost:1", "no.module:Env", "tests.support.environments:Ecko",
        "tests.mistakes.test_calls:Abstract", "os:sep", "tests.mistakes:",
    ],
)  # fmt: skip
def test_what_a_text_cannot_name_is_said_alike_by_serve_and_by_the_command(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        serve(text)
    said = str(caught.value)
    ended = run_command("serve", text)
    assert ended.returncode == 2
    # The command tries what there is, and serve looks at it.
    assert said in ended.stderr or said.partition(": ")[2] in ended.stderr
    if ":" not in text or "://" in text:
        assert ended.stderr == f"error: {said}\n"


def test_servers_of_other_machines_take_an_explicit_yes() -> None:
    # The other machine is connected to when a world is created.
    with serve("dm-env-rpc://192.0.2.1:5001", insecure=True) as server:
        assert server.errors == []
    with (
        serve("dm-env-rpc://192.0.2.1:5001") as server,
        pytest.raises(DmEnvRpcError, match=r"192\.0\.2\.1:5001.*insecure"),
    ):
        make(server.address)


def test_the_path_of_imports_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("from dm_env_rpc_client.server import Catch")
    before = list(sys.path)
    with pytest.raises(SpecError, match="cannot import 'here'"):
        serve("here:Catch")
    assert sys.path == before
    ended = dm_env_rpc_client.make("python:here:Catch")
    with ended as env:
        assert env.reset().first()
