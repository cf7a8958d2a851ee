"""The peers themselves are held against the protocol."""

from __future__ import annotations

import pytest

from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, run
from tests.peers.servers import SERVERS

GATE = ("cpp", "grpcio")
"""The others, which hardly ever change, are checked with -m slow."""

OPTIONS = Options(
    create_settings={"length": 10},
    invalid_create_settings={"colour": "red", "payload": "x", "length": "x", "bytes": -1},
    invalid_join_settings={"a": 1},
    reset_settings={"length": 5},
    invalid_reset_settings={"a": 1},
    several_worlds=True,
    several_agents=False,
    timeout=10.0,
    quiet_seconds=0.1,
)


@pytest.mark.parametrize(
    "peer",
    [name if name in GATE else pytest.param(name, marks=pytest.mark.slow) for name in SERVERS],
    indirect=True,
)
def test_every_peer_keeps_to_the_protocol(address: str) -> None:
    results = list(run(address, OPTIONS, CHECKS))
    assert [str(result) for result in results if result.is_finding] == []
    assert sum(result.outcome is Outcome.PASSED for result in results) >= 65
