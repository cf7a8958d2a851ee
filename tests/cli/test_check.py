"""`dm-env-rpc check`: results for people and for programs, and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer.testing

from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.compliance import CHECKS
from dm_env_rpc_client.server import Server
from tests.compliance import playground
from tests.compliance.broken_servers import BROKEN


def invoke(*args: str, code: int) -> Any:
    result = typer.testing.CliRunner().invoke(app, ["check", *args])
    assert result.exit_code == code, result.output
    return result


def test_a_good_server(catch_server: Server) -> None:
    result = invoke(
        catch_server.address,
        "--create=rows=4",
        "--invalid-create=rows=-1",
        "--reset=rows=5",
        "--several-worlds",
        "--one-agent",
        code=0,
    )
    assert "passed  a_world_can_be_joined\n" in result.stdout
    assert "skipped messages_of_another_shape_are_refused: " in result.stdout
    assert f" 0 failed, {result.stdout.count('skipped ')} skipped" in result.stdout


def test_a_broken_server_as_json() -> None:
    check, session_class = BROKEN["sends errors without a message"]
    with playground.serve(session_class) as address:
        result = invoke(address, "--json", "--only=errors", code=1)
    summary = json.loads(result.stdout)
    assert summary["address"] == address
    assert summary["failed"] == 1
    by_name = {row["name"]: row for row in summary["checks"]}
    assert len(by_name) == summary["passed"] + summary["failed"] + summary["skipped"]
    failed = by_name[check]
    assert failed["outcome"] == "failed"
    assert (failed["document"], failed["heading"]) == ("protocol overview", "Errors")
    assert failed["sent"] == "StepRequest"
    assert "Status" in failed["received"]
    assert "a message" in failed["expected"]


def test_a_failure_is_shown_with_what_was_sent() -> None:
    check, session_class = BROKEN["sends errors without a message"]
    with playground.serve(session_class) as address:
        result = invoke(address, f"--only={check}", code=1)
    for part in ("failed  " + check, "clause: ", "sent: StepRequest", "received: ", "expected: "):
        assert part in result.stdout
    assert "0 passed, 1 failed, 0 skipped" in result.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--only=nonsense"], "no check has 'nonsense' in its name"),
        (["--policy=clever"], "unknown policy 'clever'"),
        (["--policy=builtins:__name__"], "is not a function"),
        (["--create=rows"], "a setting looks like rows=6"),
        (["--required-create=rows"], "'rows' is not among the create settings"),
    ],
)
def test_wrong_usage(catch_server: Server, args: list[str], said: str) -> None:
    assert said in invoke(catch_server.address, *args, code=2).stderr


def test_no_server() -> None:
    result = invoke("localhost:1", "--timeout=0.3", code=3)
    assert "localhost:1" in result.stderr


def test_names_of_checks_and_clauses_are_all_there() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.document in ("protocol overview", "protocol reference")
        assert check.heading
        assert check.clause.endswith(".")
