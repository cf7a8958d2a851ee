from __future__ import annotations

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.tensors.specs import sample


@pytest.mark.parametrize(
    "spec",
    [
        specs.DiscreteArray(3),
        specs.DiscreteArray(256, np.uint8),
        specs.BoundedArray((2, 3), np.int64, -(2**63), 2**63 - 1),
        specs.Array((), np.int8),
        specs.Array((4,), np.uint64),
        specs.BoundedArray((100,), np.float32, -1, 1),
        specs.BoundedArray((3,), np.float32, [0, 1, 2], [1, 2, 2]),
        specs.BoundedArray((3,), np.float64, 2, np.inf),
        specs.BoundedArray((3,), np.float64, -np.inf, [2, 3, 4]),
        specs.BoundedArray((3,), np.float64, -1.7e308, 1.7e308),
        specs.Array((3,), np.float32),
        specs.Array((2,), bool),
        specs.StringArray((2,)),
    ],
)
def test_samples_conform_to_their_specs(spec: specs.Array) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        value = sample(spec, random)
        spec.validate(value)
        if spec.dtype.kind == "f":
            assert np.all(np.isfinite(value))


def test_samples_reach_both_ends() -> None:
    random = np.random.default_rng(0)
    assert {int(sample(specs.DiscreteArray(3), random)) for _ in range(100)} == {0, 1, 2}
