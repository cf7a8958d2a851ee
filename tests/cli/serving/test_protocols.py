"""`dm-env-rpc serve` between the protocols, each by one command in a process of its own."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.cli.serving.sources import try_source, with_settings
from dm_env_rpc_client.server import Catch, Server
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


def test_gymnasium_environments_by_id_and_by_factory() -> None:
    for reference in ("gymnasium://CartPole-v1", "gymnasium.envs.classic_control:CartPoleEnv"):
        with (
            served(reference) as address,
            gymnasium.make(REMOTE, address=address) as env,
            gymnasium.make("CartPole-v1") as local,
        ):
            assert env.observation_space == local.observation_space
            np.testing.assert_equal(env.reset(seed=3)[0], local.reset(seed=3)[0])
            np.testing.assert_equal(env.step(1)[0], local.step(1)[0])


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


@pytest.mark.parametrize("reference", ["catch", "tests.support.environments:Echo"])
def test_sources_take_settings(reference: str) -> None:
    settings = {"rows": 4} if reference == "catch" else {"length": 4}
    name, factory = with_settings(find_source(reference, insecure=False), settings)
    assert name == reference.rpartition(":")[2]
    environment = factory()
    environment.reset()
    steps = [environment.step({"paddle": 1, "value": 1}) for _ in range(3)]
    assert steps[-1].last() == (reference == "catch")


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
