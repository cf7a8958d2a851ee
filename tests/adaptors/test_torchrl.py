"""TorchRL collects batches from remote environments, through wrappers and collectors of its own."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import pytest

from dm_env_rpc_client.server import Server, serve
from tests.adaptors.gymnasium.known import REMOTE, cart_pole
from tests.support.serving import serving

# The first import takes long on a busy machine.
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def torchrl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = pytest.importorskip("torchrl.envs")
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # More of them make small tensors slower.
        yield envs
        torch.set_num_threads(threads)


server = serving(cart_pole)


def rollout(env: Any, steps: int, **settings: Any) -> Any:
    """Steps of a random policy; the same whenever the environment does the same."""
    import torch

    torch.manual_seed(3)
    try:
        env.set_seed(5)
        return env.rollout(steps, break_when_any_done=False, **settings)
    finally:
        env.close()


def test_a_batch_of_its_gym_wrapper_is_that_of_the_local_environment(
    torchrl: Any, server: Server
) -> None:
    from torchrl.envs.utils import check_env_specs

    env = torchrl.GymWrapper(gymnasium.make(REMOTE, address=server.address))
    check_env_specs(env)
    found = rollout(env, 100)
    expected = rollout(torchrl.GymWrapper(cart_pole()), 100)
    assert found.shape == (100,)
    assert found["next", "done"].sum() > 1
    assert (found == expected).all()


def test_its_collector_makes_environments_by_their_id(torchrl: Any, server: Server) -> None:
    import torch
    from torchrl.collectors import Collector
    from torchrl.modules import MLP, QValueActor

    network = MLP(in_features=4, out_features=2, num_cells=[8])
    env = torchrl.GymEnv(REMOTE, address=server.address)
    policy = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    collector = Collector(env, policy, frames_per_batch=64, total_frames=256)
    batches = list(collector)
    collector.shutdown()
    assert [batch.shape for batch in batches] == [(64,)] * 4
    for batch in batches:
        best = policy(batch.select("observation"))["action"]
        torch.testing.assert_close(batch["action"], best)
    assert server.agent_count == 0


def test_a_batch_of_its_pettingzoo_wrapper_is_that_of_the_local_environment(torchrl: Any) -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv

    def rps(**settings: Any) -> Any:
        return pettingzoo.make("parallel", "classic/rps_v2", **settings)

    with serve(rps) as own:
        env = torchrl.PettingZooWrapper(RemoteParallelEnv(own.address))
        found = rollout(env, 40)
        expected = rollout(torchrl.PettingZooWrapper(rps()), 40)
        assert (found == expected).all()
        assert own.world_count == 0
