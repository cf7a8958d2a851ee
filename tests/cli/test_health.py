"""`dm-env-rpc health`: its lines, its JSON and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dm_env_rpc_client import Tls
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.endpoint import Transport
from tests.cli.commands import Peers, invoke, is_one_line_with
from tests.support.certificates import Authority
from tests.support.forks import run_command
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


def test_peers_that_do_not_answer_end_with_3(peers: Peers) -> None:
    for address in (peers.dead, peers.silent, peers.hangs_up, peers.http):
        finished = run_command("health", address, "--timeout", "0.3")
        is_one_line_with(finished, 3, address)


@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_it_takes_tls_and_tokens(tmp_path: Path, transport: Transport) -> None:
    authority = Authority(tmp_path / "authority")
    server, client = authority.issue("server"), authority.issue("client")
    token = tmp_path / "token"
    token.write_text("secret\n")
    credentials = Tls(ca=str(authority.ca), cert=str(server.cert), key=str(server.key))
    own = ("--tls-cert", str(client.cert), "--tls-key", str(client.key))
    with serve(Catch, credentials=credentials, token="secret", transport=transport) as running:
        ca = ("--tls-ca", str(authority.ca))
        assert "SERVING" in health(running.address, *ca, *own, "--token-file", str(token))
        health(running.address, *ca, "--timeout", "2", code=3)
