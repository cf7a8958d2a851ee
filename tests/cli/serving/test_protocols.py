"""`dm-env-rpc serve` between the protocols, and of environments that are served by their names."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import SpecError, connect
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.serving.sources import try_source
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.server.serving import STOP_SECONDS
from dm_env_rpc_client.system.sources import find_source
from tests.bridges.gym_socket import hosted
from tests.cli import commands
from tests.cli.commands import ROOT, address_of, end_started, invoke, started
from tests.support.stopwatch import patience

REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"


def served(*arguments: str) -> contextlib.AbstractContextManager[str]:
    place = ("--address", "localhost:0")
    warnings = {"PYTHONWARNINGS": "error"}
    return commands.served(*arguments, *place, cwd=ROOT, environment=warnings)


def test_a_gym_socket_server_re_served_over_dm_env_rpc() -> None:
    with (
        gym_socket.serve({"CartPole-v1": hosted.seeded_cart_pole}, "localhost:0") as server,
        served(f"gym-socket://{server.address}/CartPole-v1") as address,
        dm_env_rpc_client.make(address) as env,
    ):
        assert env.action_spec()["action"].num_values == 2
        assert env.reset().observation["observation"].shape == (4,)
        assert env.step({"action": 1}).mid()


def test_a_dm_env_rpc_server_re_served_over_gym_socket(catch_server: Server) -> None:
    command = [f"dm-env-rpc://{catch_server.address}", "--protocol", "gym-socket"]
    with (
        served(*command, "--name", "Catch", "--create", "rows=4", "--isolate") as address,
        gym_socket.GymSocketEnvironment(address, "Catch") as env,
    ):
        assert env.reset().observation.shape == (4, 5)
        assert env.step(1).mid()
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


@pytest.mark.parametrize("more", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_episodes_may_end_after_sigterm(more: tuple[str, ...]) -> None:
    process = started("serve", "catch", "--address", "localhost:0", "--grace", "120", *more)
    try:
        address = address_of(process)
        with dm_env_rpc_client.make(address) as env:
            env.reset()
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert any("stopping" in line for line in process.stderr)
            time.sleep(STOP_SECONDS + 0.5)  # Longer than a stream may go on without the option.
            while True:
                if env.step({"paddle": 1}).last():
                    break
        # The last one has left, so that there is nothing to wait for.
        process.communicate(timeout=patience(30))
        assert process.returncode == 0
    finally:
        end_started()


class Level(Catch):
    """An environment with a setting that has no default."""

    def __init__(self, level: int):
        super().__init__(rows=level)


def test_what_clients_have_to_send_is_not_tried_if_told_so() -> None:
    reference = f"{__name__}:Level"
    result = invoke("serve", reference, code=2)
    assert "missing a required argument: 'level'" in result.output
    assert "--no-try" in result.output
    with (
        served(reference, "--no-try") as address,
        dm_env_rpc_client.make(address, {"level": 3}) as env,
    ):
        assert env.reset().observation["board"].shape == (3, 5)


@pytest.mark.parametrize("reference", ["catch", "race", f"{__name__}:Closing"])
def test_what_is_tried_is_closed(reference: str) -> None:
    opened = len(Closing.opened)
    try_source(find_source(reference, insecure=False), {}, reference)
    assert len(Closing.opened) == opened


def test_a_server_that_is_tried_is_left_as_it_was(catch_server: Server) -> None:
    source = find_source(f"dm-env-rpc://{catch_server.address}", insecure=False)
    try_source(source, {"rows": 4}, "the server")
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


class Closing(Catch):
    """Counts those that are not closed."""

    opened: ClassVar[list[Catch]] = []

    def __init__(self) -> None:
        super().__init__()
        self.opened.append(self)

    def close(self) -> None:
        self.opened.remove(self)


ours = functools.partial(dm_env_rpc_client.make, unwrap_single=True)


def _dm_control() -> Any:
    suite = pytest.importorskip("dm_control.suite")
    return suite.load("cartpole", "swingup", task_kwargs={"random": 1})


def _bsuite() -> Any:
    return pytest.importorskip("bsuite").load_from_id("deep_sea/0")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("reference", "load", "settings", "action"),
    [
        ("dm_control://cartpole/swingup", _dm_control, {"task_kwargs": {"random": 1}}, np.ones(1)),
        ("bsuite://deep_sea/0", _bsuite, {}, 1),
    ],
)
def test_an_environment_of_a_library_is_served_by_its_name(
    reference: str,
    load: Callable[[], Any],
    settings: dict[str, Any],
    action: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log to where it runs.
    local = load()
    source = find_source(reference, insecure=False)
    assert source.name == reference.partition("://")[2]
    with serve(source.factory) as server, ours(server.address, settings) as env:
        np.testing.assert_equal(env.reset(), local.reset())
        for _ in range(30):
            np.testing.assert_equal(env.step(action), local.step(action))


def test_an_environment_of_gymnasium_is_served_by_its_id() -> None:
    source = find_source("gymnasium://CartPole-v1", insecure=False)
    with serve(source.factory) as server:
        remote, local = (
            gymnasium.make(REMOTE, address=server.address),
            gymnasium.make("CartPole-v1"),
        )
        with remote:
            np.testing.assert_equal(remote.reset(seed=3)[0], local.reset(seed=3)[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["rps_v2", "rps-v2", "tictactoe_v3"])
def test_pettingzoo_with_its_own_names(name: str) -> None:
    source = find_source(f"pettingzoo://classic/{name}", insecure=False)
    assert source.name == f"classic/{name}"
    try_source(source, {}, "it")
    with serve(source.factory) as server, connect(server.address) as connection:
        world = dm_env_rpc_client.create_world(connection)
        with dm_env_rpc_client.join_world(connection, world) as env:
            properties = PropertiesExtension(connection)
            assert len(json.loads(str(properties["pettingzoo"]))["agents"]) == 2
            assert env.action_spec()["action"].dtype == np.int64


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("classic/rpz_v2", {}, "cannot make it: NameNotFound: .* 'classic/rps-v2'"),
        ("clasic/rps_v2", {}, "NamespaceNotFound: Namespace 'clasic' not found"),
        ("classic/rps_v9", {}, "Available version: v2"),
        ("classic/rps_v2", {"players": 3}, "unexpected keyword argument 'players'"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_pettingzoo_does_not_have(name: str, settings: dict[str, Any], text: str) -> None:
    source = find_source(f"pettingzoo://{name}", insecure=False)
    with pytest.raises(UsageError, match=text):
        try_source(source, settings, "it")


@pytest.mark.parametrize(
    ("reference", "needed"),
    [
        ("dm_control://cartpole/swingup", "package: pip install dm-control"),
        ("bsuite://catch/0", "package: pip install bsuite"),
    ],
)
def test_what_to_install(reference: str, needed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=f"requires the {needed}"):
        find_source(reference, insecure=False)


@pytest.mark.parametrize("reference", ["dm_control://cartpole", "dm_control:///swingup"])
def test_names_that_are_none(reference: str) -> None:
    pytest.importorskip("dm_control")
    with pytest.raises(SpecError, match="dm_control://DOMAIN/TASK"):
        find_source(reference, insecure=False)
