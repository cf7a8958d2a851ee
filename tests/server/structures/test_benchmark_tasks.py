"""Tasks of dm_control have their features in the order of the environment."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.server import serve

suite = pytest.importorskip("dm_control.suite")


@pytest.mark.parametrize(
    ("domain", "task"), [("cartpole", "balance"), ("walker", "walk"), ("quadruped", "walk")]
)
def test_features_of_dm_control(domain: str, task: str) -> None:
    """Code that flattens `observation.values()` gets the features that it gets in process."""

    def features(timestep: dm_env.TimeStep) -> Any:
        return np.concatenate([np.ravel(each) for each in timestep.observation.values()])

    def load(**settings: Any) -> Any:
        return suite.load(domain, task, {"random": 3})

    local = load()
    with serve(load) as server, make(server.address) as env:
        assert list(env.observation_spec()) == list(local.observation_spec())
        np.testing.assert_array_equal(features(env.reset()), features(local.reset()))
        action = np.full(local.action_spec().shape, 0.5)
        for _ in range(3):
            there, here = env.step({"action": action}), local.step(action)
            np.testing.assert_array_equal(features(there), features(here))
