"""Gymnasium's own checks, wrappers and vector environments with environments over the wire."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.utils.env_checker import check_env

from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server
from tests.adaptors.gymnasium.known import REMOTE, cart_pole
from tests.adaptors.gymnasium.proxied import Mirror
from tests.adaptors.sameness import same
from tests.support.serving import serving

NUM_ENVS = 3


server = serving({"CartPole": cart_pole, "Mirror": Mirror})


def remote(server: Server, name: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    settings = {"environment": name, **kwargs.pop("settings", {})}
    return gymnasium.make(REMOTE, address=server.address, create_world_settings=settings, **kwargs)


def noted(env: gymnasium.Env[Any, Any]) -> list[str]:
    """What check_env warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env, skip_render_check=True)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    "kind", ["box", "discrete with start", "multi-discrete", "tuple", "dict", "graph"]
)
def test_check_env_says_the_same_as_of_the_local_one(server: Server, kind: str) -> None:
    local = Mirror(kind, has_odd_infos=False)
    with remote(server, "Mirror", settings={"kind": kind, "has_odd_infos": False}) as env:
        assert noted(env.unwrapped) == noted(local)
    with remote(server, "CartPole") as env:
        assert noted(env.unwrapped) == noted(gymnasium.make("CartPole-v1").unwrapped)


def test_check_env_renders(server: Server) -> None:
    settings = {"has_odd_infos": False}
    with (
        remote(server, "Mirror", render_mode="rgb_array", settings=settings) as env,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the server at .* does not render in mode 'human'")
        check_env(env.unwrapped)


def test_make_vec_and_wrappers_of_vectors(server: Server) -> None:
    local = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    for mode in ("vector_entry_point", "sync"):
        envs = gymnasium.make_vec(
            REMOTE,
            num_envs=2,
            vectorization_mode=mode,
            address=server.address,
            create_world_settings={"environment": "CartPole"},
        )
        assert envs.single_observation_space == local.single_observation_space
        pairs = [
            wrappers.vector.RecordEpisodeStatistics(
                wrappers.vector.TransformReward(each, lambda reward: 2 * reward)
            )
            for each in (envs, local)
        ]
        assert same(pairs[0].reset(seed=1), pairs[1].reset(seed=1))
        for _ in range(20):
            found, expected = (each.step(np.zeros(2, int)) for each in pairs)
            for each in (found, expected):
                each[4].get("episode", {}).pop("t", None)
            assert same(found, expected)
        envs.close()
    local.close()


def test_batches_render(server: Server) -> None:
    mirror = {"environment": "Mirror"}
    with RemoteVectorEnv(server.address, 3, mirror, render_mode="rgb_array") as envs:
        envs.reset()
        envs.step(np.zeros(3, int))
        frames = envs.render()
        assert frames is not None
        assert [frame.tolist() for frame in frames] == [np.ones((2, 3, 3)).tolist()] * 3
    with pytest.warns(UserWarning, match="does not render in mode 'depth'"):
        envs = RemoteVectorEnv(server.address, 2, mirror, render_mode="depth")
    with envs:
        envs.reset()
        assert envs.render() is None
