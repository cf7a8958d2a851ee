"""`dm-env-rpc health`: its lines, its JSON and its exit codes."""

from __future__ import annotations

import json

from tests.cli.commands import Peers, invoke
from tests.transports.test_health_check import answering


def health(*arguments: str, code: int = 0) -> str:
    return invoke("health", *arguments, code=code).output


def test_a_server_that_serves_is_a_line_and_success(peers: Peers) -> None:
    assert health(peers.catch).startswith(f"{peers.catch} is SERVING, answered in ")
    assert health(peers.catch, "--service", "dm_env_rpc.v1.Environment").startswith(
        f"dm_env_rpc.v1.Environment at {peers.catch} is SERVING"
    )
    told = json.loads(health(peers.catch, "--json"))
    assert 0 < told.pop("seconds") < 20
    assert told == {"address": peers.catch, "service": "", "status": "SERVING"}


def test_other_answers_are_told_and_end_with_1(peers: Peers) -> None:
    assert "SERVICE_UNKNOWN" in health(peers.catch, "--service", "other", code=1)
    with answering(lambda *_: b"\x08\x02") as address:
        assert f"{address} is NOT_SERVING" in health(address, code=1)
        assert json.loads(health(address, "--json", code=1))["status"] == "NOT_SERVING"
    with answering(None) as address:
        assert health(address, code=1) == (
            f"{address} answers, but has no health service (UNIMPLEMENTED)\n"
        )
