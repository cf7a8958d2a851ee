"""Both directions joined, and what only the operator of a server turns on."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import server as grpc_server
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnvironment
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcError
from tests.bridges.gym_socket import hosted
from tests.bridges.gym_socket.hosted import hosting
from tests.travelling.environments.usual import Usual

STEPS = 300
ACTIONS = np.random.default_rng(0).integers(2, size=STEPS).tolist()


def trajectory(environment: dm_env.Environment, wrap: Any) -> list[tuple[Any, ...]]:
    """Steps through episodes; every number as it is, to be compared exactly."""
    timestep = environment.reset()
    steps = []
    for action in ACTIONS:
        observation = timestep.observation
        if isinstance(observation, dict):
            observation = observation["observation"]
        steps.append((timestep.step_type, timestep.reward, timestep.discount, observation.tolist()))
        timestep = environment.reset() if timestep.last() else environment.step(wrap(action))
    return steps


def test_cart_pole_is_the_same_through_all_layers() -> None:
    expected = trajectory(hosted.seeded_cart_pole(), int)
    assert sum(step[0] is dm_env.StepType.LAST for step in expected) > 5
    with gym_socket.serve({"CartPole-v1": hosted.seeded_cart_pole}, "localhost:0") as server:

        def remote() -> gym_socket.GymSocketEnvironment:
            return gym_socket.GymSocketEnvironment(server.address, "CartPole-v1")

        with grpc_server.serve(remote) as dm_env_rpc_server:

            def back() -> dm_env.Environment:
                return dm_env_rpc_client.make(dm_env_rpc_server.address)

            with (
                gym_socket.serve({"again": back}, "localhost:0") as outer,
                gym_socket.GymSocketEnvironment(outer.address, "again") as environment,
            ):
                assert trajectory(environment, int) == expected
                assert environment.action_space == gym_socket_space(server)
                outer.stop()
                assert not outer.errors
            assert not dm_env_rpc_server.errors
        assert not server.errors


def test_render_renders_where_there_is_a_mode_for_it() -> None:
    class Counted(AllSpaces):
        count = 0

        def render(self) -> None:
            self.count += 1

    made = Counted()
    environment = GymnasiumEnvironment(made)
    environment.render()
    assert made.count == 0
    made.render_mode = "human"
    environment.render()
    assert made.count == 1


def gym_socket_space(server: gym_socket.Server) -> Any:
    with gym_socket.GymSocketEnvironment(server.address, "CartPole-v1") as environment:
        return environment.action_space


class AllSpaces(Usual):
    """Every space of Gymnasium that gym-socket-api can carry; observes its action."""

    observation_space = action_space = gymnasium.spaces.Tuple(
        (
            gymnasium.spaces.Box(-1, 1, (2, 2), np.float32),
            gymnasium.spaces.Discrete(3),
            gymnasium.spaces.Discrete(3, start=-1),
            gymnasium.spaces.MultiBinary(3),
            gymnasium.spaces.MultiDiscrete(np.array([2, 3], np.int32)),
            gymnasium.spaces.Dict({"b": gymnasium.spaces.Discrete(2), "a": gymnasium.spaces.Box(
                0, 255, (2,), np.uint8)}),
        )
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(0)

    def observe(self) -> Any:
        return self.action if self.steps else self.action_space.sample()

    def ends(self) -> tuple[bool, bool]:
        assert self.action_space.contains(self.action)
        return False, bool(self.action[1] == 2)

    def inform(self) -> Any:
        return {"nan": float("nan"), "n": np.int64(3)}


def test_every_space_of_gymnasium_and_nested_tuples_go_all_the_way() -> None:
    with (
        gym_socket.serve({"All": AllSpaces}, "localhost:0") as server,
        grpc_server.serve(
            lambda: gym_socket.GymSocketEnvironment(server.address, "All")
        ) as dm_env_rpc_server,
        dm_env_rpc_client.make(dm_env_rpc_server.address) as adaptor,
    ):
        adaptor.reset()
        action = {
            "0": np.array([[0.5, -0.5], [1, -1]]),
            "1": 1,
            "2": -1.0,
            "3": [1, 0, 1],
            "4": [1, 2],
            "5": {"0": [0, 255], "1": 1},
        }
        timestep = adaptor.step(action)
        np.testing.assert_equal(timestep.observation, action)
        assert timestep.mid()
        last = adaptor.step({**action, "1": 2})
        assert (last.step_type, last.discount) == (dm_env.StepType.LAST, 1.0)


def test_the_info_of_gymnasium_becomes_json() -> None:
    with (
        gym_socket.serve({"All": AllSpaces}, "localhost:0") as server,
        gym_socket.GymSocketEnvironment(server.address, "All") as environment,
    ):
        assert isinstance(environment.observation_spec()[5], tuple)
        environment.reset()
        while not environment.step(environment.sample_action()).last():
            assert environment.info == {"nan": None, "n": 3}
        assert environment.info == {"nan": None, "n": 3, "TimeLimit.truncated": True}
        environment.render()


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (gymnasium.spaces.Text(5), "'Text'"),
        (gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2)), "variable length"),
    ],
)
def test_spaces_that_the_protocol_has_no_form_for(space: Any, text: str) -> None:
    class Unknown(AllSpaces):
        observation_space = space

    with (
        gym_socket.serve({"U": Unknown}, "localhost:0") as server,
        pytest.raises(dm_env_rpc_client.DmEnvRpcClientError, match=text),
    ):
        gym_socket.GymSocketEnvironment(server.address, "U")


def test_monitor_records_below_the_operators_folder_only(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "recordings"
    root.mkdir()
    (root / "way-out").symlink_to(tmp_path)
    with hosting(dialect="latest", monitor_directory=root) as (_, environment):
        for path in ("..", "../other", "/tmp", "way-out/other", "", ".", "a/../../b", "nul\0"):
            with pytest.raises(DmEnvRpcError, match=r"not below the folder|is not a valid path"):
                environment.monitor(path)
        with pytest.raises(DmEnvRpcError, match="cannot record video"):
            environment.monitor("run", video=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["recordings"]

        def recorded(episodes: int) -> list[Any]:
            for _ in range(4 * episodes):  # The step after the last of three begins an episode.
                environment.step(0)
            text = (root / "a/run/episodes.jsonl").read_text()
            return [json.loads(line) for line in text.splitlines()]

        environment.reset()
        environment.step(0)
        environment.monitor("a/run")
        environment.step(0)  # Of an episode that was under way before.
        environment.step(0)
        lines = recorded(2)
        assert [(x["episode"], x["reward"], x["length"]) for x in lines] == [(0, 3, 3), (1, 3, 3)]
        assert lines[0]["is_terminated"] is True

        with pytest.raises(DmEnvRpcError, match="already contains a recording"):
            environment.monitor(str(root / "a/run"))
        environment.monitor("a/run", resume=True)
        assert [line["episode"] for line in recorded(1)] == [0, 1, 2]
        environment.monitor("a/run", force=True)
        assert (root / "a/run/episodes.jsonl").read_text() == ""


def test_monitor_in_the_first_dialect_has_no_answer(tmp_path: pathlib.Path) -> None:
    with hosting(monitor_directory=tmp_path) as (_, environment):
        environment.monitor("run")
        assert environment.reset().first()
        assert (tmp_path / "run/episodes.jsonl").exists()
        environment.monitor("../elsewhere")
        with pytest.raises(ConnectionLostError):
            environment.reset()


def test_the_latest_dialect_refuses_what_the_operator_did_not_turn_on() -> None:
    with hosting(dialect="latest") as (_, environment):
        with pytest.raises(DmEnvRpcError, match="does not record"):
            environment.monitor("run")
        with pytest.raises(DmEnvRpcError, match="does not upload"):
            environment.upload("run", "key")
        with pytest.raises(DmEnvRpcError, match="no Universe environments"):
            environment.configure_universe({})
        with pytest.raises(DmEnvRpcError, match="no Universe wrappers"):
            environment.wrap_universe("Vision", {})
        assert environment.reset().first()


class Shrunk(gymnasium.ActionWrapper[Any, Any, Any]):
    """Has fewer actions than what it is around."""

    def __init__(self, env: gymnasium.Env[Any, Any], n: int):
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(n)

    def action(self, action: Any) -> Any:
        return action


def test_universe_goes_to_the_operators_handlers() -> None:
    made: list[gymnasium.Env[Any, Any]] = []
    configured: list[Any] = []

    def make() -> gymnasium.Env[Any, Any]:
        made.append(gymnasium.make("MountainCar-v0"))
        return made[-1]

    def wrap(environment: Any, wrapper: str, settings: Any) -> Any:
        if wrapper == "Vision":
            raise ValueError(f"no wrapper {wrapper}")
        return Shrunk(environment, settings["n"]) if wrapper == "Shrunk" else None

    with hosting(
        make,
        dialect="latest",
        configure_universe=lambda *arguments: configured.append(arguments),
        wrap_universe=wrap,
    ) as (server, environment):
        assert environment.action_space == gymnasium.spaces.Discrete(3)
        environment.configure_universe({"remotes": 1})
        assert configured == [(made[0], {"remotes": 1})]
        with pytest.raises(DmEnvRpcError, match="ValueError: no wrapper Vision"):
            environment.wrap_universe("Vision", {})
        with pytest.raises(
            DmEnvRpcError, match="wrap_universe returned an object of type NoneType; expected"
        ):
            environment.wrap_universe("Nothing", {})
        assert environment.reset().first()
        environment.wrap_universe("Shrunk", {"n": 2})
        assert environment.action_space == gymnasium.spaces.Discrete(2)
        assert {int(environment.sample_action()) for _ in range(40)} == {0, 1}
        environment.reset()
        assert environment.step(1).mid()
    assert not server.errors
