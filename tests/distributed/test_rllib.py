"""RLlib trains on remote environments by their Gymnasium id, single and vectorised."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server
from tests.adaptors.gymnasium.known import REMOTE, cart_pole
from tests.support.serving import serving

# Torch takes hundreds of megabytes, so these are run where somebody has installed it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("ray"),
]


@pytest.fixture(scope="module")
def config() -> Any:
    """What makes the configuration of PPO for an address."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.rllib.algorithms.ppo import PPOConfig
        from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    logging.getLogger("ray").setLevel(logging.ERROR)

    def configure(address: str, **runners: Any) -> Any:
        return (
            PPOConfig()
            .environment(REMOTE, env_config={"address": address})
            .env_runners(**runners)
            .training(
                lr=1e-3,
                gamma=0.98,
                lambda_=0.9,
                train_batch_size_per_learner=1024,
                minibatch_size=128,
                num_epochs=10,
                vf_clip_param=1000.0,
            )
            .rl_module(
                model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh")
            )
            .debugging(seed=1)
        )

    return configure


server = serving(cart_pole, scope="function", checks_errors=True)


@contextlib.contextmanager
def trained(config: Any) -> Iterator[Any]:
    algorithm = config.build_algo()
    try:
        yield algorithm
    finally:
        algorithm.stop()


def mean_return(results: Any) -> float:
    return float(results["env_runners"]["episode_return_mean"])


def test_a_vector_is_that_of_this_package(config: Any, server: Server) -> None:
    vector = {"num_envs_per_env_runner": 4, "gym_env_vectorize_mode": "vector_entry_point"}
    with trained(config(server.address, num_env_runners=0, **vector)) as algorithm:
        envs = algorithm.env_runner.env.unwrapped
        assert isinstance(envs, RemoteVectorEnv)
        assert (envs.num_envs, server.world_count) == (4, 4)


@pytest.mark.parametrize(
    "runners",
    [
        {"num_env_runners": 0},
        {"num_env_runners": 1, "num_envs_per_env_runner": 2},
        {
            "num_env_runners": 1,
            "num_envs_per_env_runner": 4,
            "gym_env_vectorize_mode": "vector_entry_point",
        },
    ],
    ids=["single", "several", "vector"],
)
def test_it_trains(config: Any, server: Server, runners: dict[str, Any]) -> None:
    with trained(config(server.address, **runners)) as algorithm:
        results = algorithm.train()
        assert mean_return(results) > 8
        assert results["env_runners"]["num_env_steps_sampled"] >= 1024
        assert server.stats().steps >= 1024
