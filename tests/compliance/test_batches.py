"""The suite has nothing to say against batched worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, run
from dm_env_rpc_client.server import Catch, serve
from tests.adaptors.gymnasium.known import cart_pole, cart_poles


@pytest.mark.parametrize(
    ("factory", "create", "reset"),
    [
        (Catch, {"num_envs": 3, "rows.seed": [1, 2, 3]}, {"rows.seed": [4, 5, 6]}),
        (Catch, {"num_envs": 1}, {"seed": 1}),
        (cart_pole, {"num_envs": 3}, {"rows.seed": [4, 5, 6]}),
        (cart_pole, {"num_envs": 3, "autoreset_mode": "SAME_STEP"}, {"reset_mask": [True] * 3}),
        (cart_poles, {"num_envs": 3}, {"seed": 3}),
        (cart_poles, {"num_envs": 3, "mode": "SAME_STEP"}, {"rows.seed": [4, 5, 6]}),
    ],
    ids=[
        "dm_env",
        "one-row",
        "gymnasium",
        "gymnasium-same-step",
        "vector",
        "vector-same-step",
    ],
)
def test_batches_keep_to_the_protocol(
    factory: Callable[..., Any], create: dict[str, Any], reset: dict[str, Any]
) -> None:
    options = Options(
        create_settings=create,
        invalid_create_settings={"num_envs": 0},
        reset_settings=reset,
        invalid_reset_settings={"reset_mask": [False]},
        several_agents=False,
        timeout=20.0,
        quiet_seconds=0.1,
    )
    with serve(factory) as server:
        results = list(run(server.address, options, CHECKS))
    assert [str(result) for result in results if result.is_finding] == []
    assert sum(result.outcome is Outcome.PASSED for result in results) >= 60
