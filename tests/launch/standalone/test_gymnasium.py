"""Environments of gym and Gymnasium on other Pythons are what they are here, at the other end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import DmEnvRpcError
from dm_env_rpc_client.adaptors.gymnasium import space_json
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file
from dm_env_rpc_client.server import serve
from tests.launch.standalone import hosted_gym
from tests.launch.standalone.interpreters import interpreter, served
from tests.launch.standalone.test_server import is_same

KINDS = [
    ("3.6", "gym==0.15.7 cloudpickle==2.2.1 six"),
    ("3.7", "gym==0.21.0 cloudpickle importlib-metadata==4.13.0 zipp typing-extensions"),
    ("3.8", "gym==0.23.1 gym-notices cloudpickle importlib-metadata zipp"),
    ("3.8", "gym==0.25.2 gym-notices cloudpickle importlib-metadata zipp"),
    ("3.8", "gym==0.26.2 gym-notices cloudpickle importlib-metadata zipp"),
    ("3.13", "gymnasium farama-notifications cloudpickle typing-extensions"),
]


def played(address: str, is_old: bool, length: int) -> list[Any]:
    env = gymnasium.make(
        "dm_env_rpc_client.gymnasium:Remote-v0",
        address=address,
        create_world_settings={"length": length},
        render_mode="rgb_array",
    )
    with env:
        env.action_space.seed(3)
        found: list[Any] = [env.action_space, env.observation_space, env.metadata["render_modes"]]
        for _ in range(3):
            observation, info = env.reset(seed=7, options=None if is_old else {"x": 1})
            # Until gym 0.25 there is no info of a reset.
            found += [observation, None if is_old else info, env.render()]
            is_over = False
            while not is_over:
                observation, reward, terminated, truncated, info = env.step(
                    env.action_space.sample()
                )
                is_over = terminated or truncated
                if is_old:  # It cannot say that an episode ended in both ways.
                    info.pop("TimeLimit.truncated", None)
                    terminated, truncated = bool(is_over), bool(is_over)
                elif is_over:
                    assert truncated
                found += [observation, reward, terminated, truncated, info, env.render()]
    return found


@pytest.mark.parametrize("length", [4, 5])
@pytest.mark.parametrize(
    ("version", "packages"),
    [
        pytest.param(*kind, marks=[] if kind[0] in ("3.6", "3.13") else [pytest.mark.slow])
        for kind in KINDS
    ],
)
def test_spaces_infos_and_frames_are_equal(version: str, packages: str, length: int) -> None:
    python = interpreter(version, *packages.split())
    is_old = "gym==0.1" in packages or ("gym==0.2" in packages and "0.26" not in packages)
    with served(python, "hosted_gym:Many") as server, serve(hosted_gym.Many) as own:
        one, other = played(server.address, is_old, length), played(own.address, is_old, length)
    assert one[:3] == other[:3]
    assert len(one) == len(other)
    for left, right in zip(one[3:], other[3:], strict=True):
        assert is_same(left, right), (left, right)


class _Resets(gymnasium.Env[Any, Any]):
    """Says in its info how it was reset, by a method that is added."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(2)
    seeds = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 0, 1.0, False, False, {}


def _seed(env: Any, seed: Any) -> None:
    env.seeds = seed


def _by_method(env: Any, **given: Any) -> Any:
    return type(env).bare_reset(env, **given)


NOTHING: dict[str, Any] = {"reset": lambda env: (0, {"taken": {}})}
ANYTHING = {"reset": lambda env, **given: (0, {"taken": given})}
METHOD = {"seed": _seed, "reset": lambda env: (0, {"taken": {"method": env.seeds}})}
"""As in gym until 0.25."""
METHOD_BEHIND_ANYTHING = {**METHOD, "bare_reset": METHOD["reset"], "reset": _by_method}
"""As in gym's wrappers until 0.25, which pass everything on."""
BOTH = {"seed": _seed, "reset": lambda env, seed=None: (0, {"taken": {"seed": seed}})}
"""As in gym 0.25."""


@pytest.mark.parametrize(
    ("methods", "given", "taken"),
    [
        (NOTHING, {}, {}),
        (NOTHING, {"options": {}}, {}),
        (NOTHING, {"seed": 3}, "unexpected keyword argument 'seed'"),
        (NOTHING, {"options": {"x": 1}}, "unexpected keyword argument 'options'"),
        (ANYTHING, {"seed": 3, "options": {}}, {"seed": 3, "options": {}}),
        (ANYTHING, {"options": {"x": 1}}, {"options": {"x": 1}}),
        (METHOD, {"seed": 3, "options": {}}, {"method": 3}),
        (METHOD, {"options": {"x": 1}}, "unexpected keyword argument 'options'"),
        (METHOD_BEHIND_ANYTHING, {"seed": 3, "options": {}}, {"method": 3}),
        (METHOD_BEHIND_ANYTHING, {"options": {"x": 1}}, "unexpected keyword argument 'options'"),
        (BOTH, {"seed": 3}, {"seed": 3}),
    ],
)
def test_a_reset_gets_what_the_environment_takes(
    methods: dict[str, Any], given: dict[str, Any], taken: dict[str, Any] | str
) -> None:
    """Other arguments raise its own error, as in process; only empty options are left out."""
    with one_file.Server(type("Reset", (_Resets,), methods)) as server:
        env = gymnasium.make(
            "dm_env_rpc_client.gymnasium:Remote-v0",
            address=server.address,
            disable_env_checker=True,
        )
        with env:
            if isinstance(taken, str):
                with pytest.raises(DmEnvRpcError, match=taken):
                    env.reset(**given)
            else:
                assert env.reset(**given)[1] == {"taken": taken}


@pytest.mark.parametrize("edges", [None, gymnasium.spaces.Discrete(3)])
def test_a_graph_is_described(edges: Any) -> None:
    nodes = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    graph = gymnasium.spaces.Graph(nodes, edges)
    assert space_json.from_json(one_file._space_json(graph), "it") == graph
