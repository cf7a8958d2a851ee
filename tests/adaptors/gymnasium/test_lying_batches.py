"""A server whose batch of Gymnasium environments is not what its descriptions and infos say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import BatchedEnvironment, EnvironmentsFailedError
from dm_env_rpc_client.adaptors.gymnasium import space_json, value_json
from dm_env_rpc_client.adaptors.gymnasium.info_observation import extras_of_rows
from dm_env_rpc_client.adaptors.gymnasium.vector_description import (
    VECTOR_DESCRIPTION,
    describe_vector,
)
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import DmEnvRpcClientError, ProtocolError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server import Properties, serve
from tests.adaptors.sameness import same
from tests.support.environments import Echo
from tests.travelling.environments.of_dm_env import Timed

COUNT = 3


class Described(gymnasium.Env[Any, Any]):
    """What the batch says that each of its rows is."""

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    render_mode = "rgb_array"
    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (), np.float32)


OF_NO_ROWS: dict[str, Any] = {
    "infos without rows": {"x": 5},
    "infos of other rows": {"x": np.zeros(2), "_x": np.ones(2, bool), "y": np.zeros(3), "_y": 1},
    "infos in infos": {"x": {"y": {"z": "text"}}},
}
TEXTS: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "observation 'gymnasium': expected UTF-8 JSON"),
    "a list": ("[]", "expected infos of 3 rows"),
    "flags of other rows": (value_json.encode({"truncated": np.ones(2, bool)}), "infos of 3 rows"),
    "flags that are numbers": (value_json.encode({"truncated": np.ones(3)}), "infos of 3 rows"),
    "a row that is a number": (value_json.encode({"rows": {1: {}}}), "from 0 to 2, got 1"),
    "a row that is a word": (value_json.encode({"rows": {"x": {}}}), "from 0 to 2, got 'x'"),
    "flags that are texts": (value_json.encode({"truncated": ["a", "b", "c"]}), "infos of 3 rows"),
}


class Lying(Timed):
    """A batch of three."""

    reset_settings = ("infos",)

    def __init__(self, num_envs: int = COUNT, lie: str = ""):
        self._lie = lie
        shape = (COUNT, 2) if lie == "discounts" else (COUNT,)
        self._left = np.ones(shape)
        super().__init__(
            0,
            spec={
                "observation": specs.BoundedArray((COUNT,), np.float32, -1, 1, "observation"),
                "step_type": specs.Array((COUNT,), np.uint8, "step_type"),
                "row_errors": specs.StringArray((), name="row_errors"),
                **({} if lie == "no infos" else {"gymnasium": specs.StringArray(())}),
            },
            action={"action": specs.BoundedArray((COUNT,), np.int64, 0, 1, "action")},
            reward=specs.Array((COUNT,), np.float64, "reward"),
            discount=specs.Array(shape, np.float64, "discount"),
        )
        names = ("action_space", "observation_space")
        described = {n: space_json.to_json(getattr(Described, n), n, []) for n in names}
        text = describe_vector(
            Described(), num_envs, AutoresetMode.NEXT_STEP, described, [], ["stacked"]
        )
        if lie in ("a mode", "a mode that is a list"):
            description = json.loads(text)
            description["autoreset_mode"] = "Never" if lie == "a mode" else []
            text = json.dumps(description)
        frames = {"no frames": 5, "frames of other rows": np.zeros((2, 4, 4, 3), np.uint8)}
        self.properties = {
            batches.WORLD_NUM_ENVS: lambda: num_envs,
            VECTOR_DESCRIPTION: lambda: text,
            "gymnasium.frame": lambda: frames.get(lie, np.zeros((COUNT, 4, 4, 3), np.uint8)),
        }

    def configure(self, settings: Mapping[str, Any]) -> None:
        pass

    def infos(self) -> str:
        if self._lie in OF_NO_ROWS:
            return value_json.encode({"info": OF_NO_ROWS[self._lie]})
        return TEXTS[self._lie][0] if self._lie in TEXTS else ""

    def _told(self) -> dm_env.TimeStep:
        is_first = self.steps == 0
        values = {
            "observation": np.zeros(COUNT, np.float32),
            "step_type": np.full(COUNT, not is_first, np.uint8),
            "row_errors": "",
            **({} if self._lie == "no infos" else {"gymnasium": "" if is_first else self.infos()}),
        }
        if is_first:
            return dm_env.restart(values)
        return dm_env.transition(np.ones(COUNT), values, self._left)


def play(address: str, lie: str) -> None:
    envs = RemoteVectorEnv(address, COUNT, {"lie": lie}, render_mode="rgb_array")
    try:
        envs.reset()
        envs.step(np.zeros(COUNT, int))
        frames = envs.render()
        assert frames is not None
        assert len(frames) == COUNT
    finally:
        envs.close()


MISTAKES = {
    "a mode": "'Never' is not a valid AutoresetMode",
    "a mode that is a list": "is not a valid AutoresetMode",
    "no infos": "not the requested observation 'gymnasium'",
    "discounts": "'discount' of world 'world-1' has the shape [2] in each row",
    "no frames": "expected 3 frames, got",
    "frames of other rows": "expected 3 frames, got 2",
    **{lie: expected for lie, (_, expected) in TEXTS.items()},
}


@pytest.mark.parametrize("name", OF_NO_ROWS)
def test_infos_that_are_not_of_rows_arrive(name: str) -> None:
    with serve(Lying) as server:
        for count in (COUNT, 2 * COUNT):  # One batch, and two of them.
            own = RemoteVectorEnv(server.address, count, {"lie": name}, num_batches=count // COUNT)
            own.reset()
            infos = own.step(np.zeros(count, int))[-1]
            own.close()
            expected = dict(OF_NO_ROWS[name])
            if "y" in expected:
                expected["y"] = np.zeros(count)
            assert same(infos, expected)


@pytest.mark.parametrize("lie", MISTAKES)
def test_a_batch_that_is_not_what_it_says_is_a_public_error(lie: str) -> None:
    with serve(Lying) as server, pytest.raises(DmEnvRpcClientError) as caught:
        play(server.address, lie)
    assert MISTAKES[lie] in str(caught.value)


@pytest.mark.parametrize("most", [float("inf"), float("nan"), -5, "many", [4], 2.5])
def test_what_is_no_number_of_rows_is_taken_for_no_batches(most: Any) -> None:
    properties = Properties()
    properties.add(batches.MAX_NUM_ENVS, lambda: most)
    with (
        serve(Echo, properties=properties) as server,
        BatchedEnvironment(server.address, 2) as envs,
    ):
        envs.reset()
        assert server.world_count == 2


@pytest.mark.parametrize(
    "own",
    [
        {"dtype": "float64", "shape": [1000], "at": 0},
        {"dtype": "float64", "shape": [2], "at": 8},
        {"dtype": "float64", "shape": [-1], "at": 0},
        {"dtype": "float64", "shape": [2], "at": "0"},
        {"dtype": "object", "shape": [2], "at": 0},
        {"shape": [2], "at": 0},
        {},
    ],
)
def test_blocks_that_are_not_there_are_an_error(own: dict[str, Any]) -> None:
    text = json.dumps({"info": {"x": {"$": "block", **own}}})
    with pytest.raises(ProtocolError, match="observation 'info_arrays': invalid"):
        extras_of_rows(text, COUNT, np.zeros(16, np.uint8))


class LyingOnce(Lying):
    """Its first step has infos, which are no JSON if it lies; later steps have none."""

    def __init__(self, num_envs: int = COUNT, is_lying: bool = False):
        super().__init__(num_envs)
        infos = {"x": np.ones(COUNT), "_x": np.ones(COUNT, bool)}
        self._texts = ["{" if is_lying else value_json.encode({"info": infos})]

    def infos(self) -> str:
        return self._texts.pop() if self._texts else ""


def test_infos_of_a_step_that_failed_elsewhere_are_not_those_of_the_next_step() -> None:
    settings = [{"is_lying": row % 2 == 0} for row in range(2 * COUNT)]
    with (
        serve(LyingOnce) as server,
        RemoteVectorEnv(server.address, 2 * COUNT, settings, num_batches=2) as envs,
    ):
        envs.reset()
        with pytest.raises(EnvironmentsFailedError) as caught:
            envs.step(np.zeros(2 * COUNT, int))
        assert sorted(caught.value.failures) == [0, 2, 4]
        assert envs.step(np.zeros(2 * COUNT, int))[-1] == {}
