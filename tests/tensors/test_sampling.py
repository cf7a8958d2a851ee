from __future__ import annotations

import numpy as np
import tree
from dm_env import specs

from dm_env_rpc_client.tensors.specs import sample


def test_samples_conform() -> None:
    random = np.random.default_rng(0)
    spec = {
        "unbounded": specs.Array((3,), np.float32),
        "half": (
            specs.BoundedArray((3,), np.float64, 2, np.inf),
            specs.BoundedArray((3,), np.float64, -np.inf, [2, 3, 4]),
        ),
        "flags": specs.Array((2,), bool),
        "integer": specs.Array((), np.int8),
    }
    for _ in range(100):
        drawn = tree.map_structure(lambda leaf: sample(leaf, random), spec)
        tree.map_structure(lambda leaf, value: leaf.validate(value), spec, drawn)
        assert drawn["half"][0].min() >= 2
        assert (drawn["half"][1] <= [2, 3, 4]).all()
