"""What only the operator of a server turns on: recordings below a folder, and Universe."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import gymnasium
import pytest

from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcError
from tests.bridges.gym_socket.hosted import hosting


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
