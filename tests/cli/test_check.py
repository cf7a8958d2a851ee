"""`dm-env-rpc check` and `dm-env-rpc health`: lines, JSON and exit codes."""

from __future__ import annotations

import json

from dm_env_rpc_client.compliance import Outcome
from dm_env_rpc_client.server import Server
from tests.cli.commands import Peers, invoke
from tests.compliance import playground
from tests.compliance.broken_servers import BROKEN
from tests.transports.test_health_check import answering


def test_a_good_server(catch_server: Server) -> None:
    settings = ("--create=rows=4", "--invalid-create=rows=-1", "--reset=rows=5")
    result = invoke("check", catch_server.address, *settings, "--several-worlds", "--one-agent")
    assert "passed  a_world_can_be_joined\n" in result.stdout
    assert "skipped messages_of_another_shape_are_refused: " in result.stdout
    assert " passed, 0 failed, 0 warned, " in result.stdout


def test_a_broken_server_as_json() -> None:
    check, session_class = BROKEN["sends errors without a message"]
    with playground.serve(session_class) as address:
        line = ("check", address, "--json", "--only=errors")
        summary = json.loads(invoke(*line).stdout)
        strict = json.loads(invoke(*line, "--strict", code=1).stdout)
    assert summary["address"] == address
    assert (summary["failed"], summary["warned"]) == (0, 1)
    assert (strict["failed"], strict["warned"]) == (1, 0)
    by_name = {row["name"]: row for row in summary["checks"]}
    assert len(by_name) == sum(summary[each.value] for each in Outcome)
    assert "the server decides" in by_name[check]["reason"]
    assert by_name[check]["outcome"] == "warned"
    (failed,) = [row for row in strict["checks"] if row["outcome"] == "failed"]
    assert (failed["document"], failed["heading"]) == ("protocol overview", "Errors")
    assert failed["sent"] == "StepRequest"
    assert "Status" in failed["received"]
    assert "a message" in failed["expected"]


def test_a_failure_is_shown_with_what_was_sent() -> None:
    check, session_class = BROKEN["sends what is no message"]
    with playground.serve(session_class) as address:
        result = invoke("check", address, f"--only={check}", code=1)
    for part in ("failed  " + check, "clause: ", "sent: StepRequest", "received: ", "expected: "):
        assert part in result.stdout
    assert "0 passed, 1 failed, 0 warned, 2 skipped" in result.stdout


def test_an_engine_that_dies_is_shown_with_its_last_words() -> None:
    mortal = ("python:tests.launch.test_ends:Mortal", "--create", "end=os._exit(3)")
    text = " ".join(invoke("check", *mortal, code=1).stdout.split())
    assert "the server ended with exit code 3" in text
    assert text.count("Its last lines: ") == 1
    assert "no licence" in text


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
