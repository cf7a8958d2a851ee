"""One cause is one finding, of the right level, and what depends on it is skipped; the options."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from dm_env_rpc_client.cli.check import check as command
from dm_env_rpc_client.compliance import (
    CHECKS,
    Options,
    Outcome,
    Result,
    Suite,
    run,
    test_all,
)
from dm_env_rpc_client.compliance.checks import foundations
from dm_env_rpc_client.compliance.options import FLAGS, Kind
from dm_env_rpc_client.compliance.outcome import Takes
from dm_env_rpc_client.compliance.runner import FOUNDATIONS
from dm_env_rpc_client.testing import ScriptedServer, answering, pytest_plugin
from tests.compliance import broken_properties, playground
from tests.compliance.breakage import OPTIONS, session_of
from tests.compliance.broken_sequences import DemandsActions
from tests.compliance.broken_servers import BROKEN
from tests.compliance.limited_servers import (
    LIMITED,
    OneClient,
)
from tests.reliability.recording import Seen
from tests.support.scripted import ServerProcess
from tests.support.stopwatch import patience


def patient(options: Options) -> Options:
    """Options by which a good answer has more time on a busy machine."""
    return dataclasses.replace(options, timeout=patience(options.timeout))


def the_finding(address: str, options: Options = OPTIONS) -> tuple[Result, list[Result]]:
    """Runs all checks, of which one finds something; returns that one and the skipped ones."""
    results = list(run(address, patient(options)))
    assert [result.name for result in results] == [check.name for check in CHECKS]
    found = [result for result in results if result.is_finding]
    assert len(found) == 1, [str(result) for result in found]
    return found[0], [result for result in results if result.outcome is Outcome.SKIPPED]


@pytest.mark.row(30)
def test_a_server_that_ends_the_stream_after_an_error(seen: Seen) -> None:
    with playground.serve(BROKEN["ends the stream after an error"][1]) as address:
        finding, skipped = the_finding(address)
    seen(servers_with_one_cause=1, their_findings=1)
    assert (finding.name, finding.outcome) == ("the_stream_survives_errors", Outcome.WARNED)
    assert "may close the stream" in finding.reason
    because = {r.name for r in skipped if "errors end the stream" in r.reason}
    assert {"an_error_changes_no_state", "answers_are_of_the_requests_kind"} <= because
    # What can be tried on a new connection is tried.
    names = {result.name for result in skipped}
    assert names.isdisjoint({"unknown_actions_are_refused", "actions_out_of_range_are_refused"})
    assert len(because) <= 10


class CannotCreate(playground.Worlds):
    def create(self, settings: Mapping[str, Any]) -> str:
        raise playground.RequestError("no room for a world")


class CannotBeJoined(playground.Session):
    def on_join_world(self, request: Any) -> Any:
        raise playground.RequestError("nobody joins")


@pytest.mark.row(30)
@pytest.mark.parametrize(
    ("session_class", "sent", "received", "advice"),
    [
        (session_of(CannotCreate), "CreateWorldRequest", "no room for a world", "--create"),
        (CannotBeJoined, "JoinWorldRequest", "nobody joins", "--join"),
    ],
)
def test_a_server_on_which_nothing_can_be_checked(
    session_class: type[playground.Session], sent: str, received: str, advice: str, seen: Seen
) -> None:
    with playground.serve(session_class) as address:
        finding, skipped = the_finding(address)
    seen(servers_with_one_cause=1, their_findings=1)
    assert (finding.name, finding.outcome) == ("the_server_can_be_checked", Outcome.FAILED)
    assert finding.sent.startswith(sent)
    assert received in finding.received
    assert advice in finding.expected
    assert len(skipped) == len(CHECKS) - 1
    assert {r.reason for r in skipped} == {"nothing can be checked (the_server_can_be_checked)"}


def test_a_server_of_another_protocol() -> None:
    def script(requests: Any, context: Any) -> Any:
        context.abort(12, "no such method")
        yield

    with ScriptedServer(script) as server:
        finding, _ = the_finding(server.address)
        server.errors.clear()
    assert finding.name == "the_server_can_be_checked"
    assert "no such method" in finding.received


def test_no_server() -> None:
    finding, skipped = the_finding("localhost:1", Options(timeout=0.2))
    assert "localhost:1" in finding.received
    assert len(skipped) == len(CHECKS) - 1


_DIES = """
import os, sys, threading
from tests.compliance import playground

class Dies(playground.Session):
    is_ending = False

    def on_step(self, request):
        known = playground.make_specs()
        if not {*request.actions} <= {*known.actions} or not (
            {*request.requested_observations} <= {*known.observations}
        ):
            if sys.argv[1] == "at once":
                os._exit(1)
            Dies.is_ending = True
            raise RuntimeError("ends the stream")
        return super().on_step(request)

    def on_leave_world(self, request):
        self.is_last = Dies.is_ending
        return super().on_leave_world(request)

    def gone(self):
        super().gone()
        if getattr(self, "is_last", False):
            os._exit(1)

with playground.serve(Dies) as address:
    print(address, flush=True)
    threading.Event().wait(120)
"""


@pytest.mark.row(30)
@pytest.mark.parametrize("dies", ["at once", "after another connection"])
def test_a_server_that_dies_of_an_unknown_uid(dies: str, seen: Seen) -> None:
    # So long a connection to a server that is gone is tried again.
    options = dataclasses.replace(OPTIONS, timeout=5.0)
    with ServerProcess(_DIES, dies) as server:
        finding, skipped = the_finding(server.address, options)
        seen(servers_with_one_cause=1, their_findings=1)
        assert server.process.wait(10) == 1
    assert finding.outcome is Outcome.FAILED
    assert finding.sent.startswith("StepRequest")
    assert "since then no connection" in finding.received
    gone = [r for r in skipped if r.reason == f"the server is gone since {finding.name}"]
    assert len(gone) >= len(CHECKS) - len(FOUNDATIONS)


def test_a_finding_comes_before_the_check_that_it_blocks() -> None:
    checks = [check for check in CHECKS if check.name == "an_error_fails_its_own_request_only"]
    with playground.serve(BROKEN["ends the stream after an error"][1]) as address:
        found, skipped = run(address, OPTIONS, checks)
    assert found.name == "the_stream_survives_errors"
    assert skipped.reason == "errors end the stream (the_stream_survives_errors)"


def test_strict_makes_warnings_failures() -> None:
    options = Options(strict=True, timeout=2.0, quiet_seconds=0.05)
    checks = [foundations.the_stream_survives_errors]
    with playground.serve(BROKEN["ends the stream after an error"][1]) as address:
        (finding,) = run(address, patient(options), checks)
    assert finding.outcome is Outcome.FAILED
    assert finding.reason == ""


def test_no_answer_is_an_error_also_of_checks_that_warn() -> None:
    class Silent(playground.Session):
        def answers(self, request: Any) -> Any:
            if request.WhichOneof("payload") is not None:
                yield from super().answers(request)

    with playground.serve(Silent) as address:
        finding, _ = the_finding(address, Options(timeout=0.5, quiet_seconds=0.05))
    assert finding.name == "a_request_without_payload_is_refused"
    assert finding.outcome is Outcome.FAILED
    assert finding.received.startswith("no answer")


@pytest.mark.skipif(sys.flags.optimize > 1, reason="without docstrings")
@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_each_check_says_why_it_has_its_level(check: Any) -> None:
    text = check.function.__doc__
    assert ("A violation is a warning because " in text) == bool(check.leniency)
    assert ("A violation is an error because " in text) != bool(check.leniency)


def test_a_check_as_a_test(request: pytest.FixtureRequest) -> None:
    properties: list[tuple[str, object]] = []

    def as_test(name: str, address: str, timeout: float = 2.0) -> None:
        (check,) = [check for check in CHECKS if check.name == name]
        options = patient(Options(timeout=timeout))
        test_all.test(check, address, options, suites, request, lambda *of: properties.append(of))

    suites: dict[str, Suite] = {}
    with playground.serve() as address:
        as_test("a_world_can_be_joined", address)
        with pytest.raises(pytest.skip.Exception, match="no reset settings"):
            as_test("reset_settings_are_taken", address)
    ended = pytest.raises(
        pytest.fail.Exception, match=r"^the_server_can_be_checked: got the end of"
    )
    with ScriptedServer(answering()) as server:
        # What blocks the check is reported by its test; later ones are skipped.
        with ended:
            as_test("leaving_while_not_joined_is_a_no_op", server.address)
        with pytest.raises(pytest.skip.Exception, match="nothing can be checked"):
            as_test("a_step_may_be_empty", server.address)
    (found,) = properties
    assert str(found[1]).startswith("failed the_server_can_be_checked: got the end of the stream")
    with pytest.raises(pytest.fail.Exception, match="expected: a connection"):
        as_test("a_world_can_be_joined", "localhost:1", 0.2)


def test_what_a_check_needs_runs_before_it() -> None:
    before: set[str] = set()
    for check in CHECKS:
        assert {need.name for need in check.needs} <= before
        before.add(check.name)
    assert CHECKS[: len(FOUNDATIONS)] == FOUNDATIONS
    assert FOUNDATIONS[0] is foundations.the_server_can_be_checked


FEW = Options(timeout=2.0, quiet_seconds=0.05)
"""With fewer options, checks that take one client do what they did with more, or nothing."""


@pytest.mark.parametrize(
    ("session_class", "options"),
    [
        *((each, FEW) for each in LIMITED if each is not OneClient),
        (OneClient, OPTIONS),
        # Each takes as long as the whole suite.
        *(
            pytest.param(each, OPTIONS, marks=pytest.mark.slow)
            for each in LIMITED
            if each is not OneClient
        ),
    ],
)
def test_what_a_server_has_no_room_for_is_skipped_with_that_reason(
    session_class: type[playground.Session], options: Options
) -> None:
    expected, reasons = LIMITED[session_class]
    checks = [
        check
        for check in CHECKS
        if options is OPTIONS or check.takes != Takes() or check.name in expected
    ]
    with playground.serve(session_class) as address:
        results = {result.name: result for result in run(address, patient(options), checks)}
    assert [name for name, result in results.items() if result.is_finding] == expected
    for name, reason in reasons.items():
        assert results[name].reason.startswith(reason)
    is_full = "worlds_are_independent" not in reasons
    assert (results["worlds_are_independent"].outcome is Outcome.PASSED) == is_full


DEFAULTS = Options(quiet_seconds=0.05)


def findings(
    session_class: type[playground.Session], about: str = "", **given: Any
) -> list[Result]:
    options = dataclasses.replace(DEFAULTS, timeout=patience(2.0), **given)
    checks = [check for check in CHECKS if about in check.name]
    with playground.serve(session_class) as address:
        return [result for result in run(address, options, checks) if result.is_finding]


def texts(found: list[Result]) -> list[tuple[str, Outcome]]:
    return [(result.name, result.outcome) for result in found]


class _AnySettings(playground.Worlds):
    def create(self, settings: Mapping[str, Any]) -> str:
        return super().create({})


class TakesAnySettings(playground.Session):
    worlds_class = _AnySettings

    def on_join_world(self, request: Any) -> Any:
        request.settings.clear()
        return super().on_join_world(request)

    def on_reset(self, request: Any) -> Any:
        request.settings.clear()
        return super().on_reset(request)


@pytest.mark.row(30)
def test_a_server_that_takes_any_settings_is_one_warning(seen: Seen) -> None:
    found = findings(TakesAnySettings, "settings")
    seen(servers_with_one_cause=1, their_findings=len(found))
    assert texts(found) == [("unknown_create_settings_are_refused", Outcome.WARNED)]
    assert "'no such setting'" in found[0].expected


class DestroysNothingInUse(playground.Worlds):
    """It has one world, and says that it has destroyed it where it has not."""

    def create(self, settings: Mapping[str, Any]) -> str:
        if self.worlds:
            raise playground.RequestError("there is a world")
        return super().create(settings)

    def destroy(self, name: str) -> None:
        if name in self.worlds and not self.worlds[name].agents:
            super().destroy(name)


def test_a_destroy_that_always_succeeds_breaks_two_rules() -> None:
    found = findings(session_of(DestroysNothingInUse))
    assert texts(found) == [
        ("an_unknown_world_cannot_be_destroyed", Outcome.WARNED),
        ("a_world_with_an_agent_is_destroyed_in_one_of_three_ways", Outcome.FAILED),
    ], [str(each) for each in found]


@pytest.mark.parametrize("session_class", [DemandsActions, *broken_properties.GOOD])
def test_what_an_engine_may_do(session_class: type[playground.Session]) -> None:
    assert texts(findings(session_class)) == []


class RecordingGroup(dict[str, Any]):
    """The options that a plugin adds to pytest."""

    def getgroup(self, name: str, description: str) -> RecordingGroup:
        return self

    def addoption(self, name: str, **details: Any) -> None:
        self[name] = details


def test_every_field_is_a_flag_of_the_command_and_an_option_of_pytest() -> None:
    assert list(FLAGS) == [field.name for field in dataclasses.fields(Options)]
    of_command = inspect.signature(command).parameters
    pytest_plugin.pytest_addoption(of_pytest := RecordingGroup())  # type: ignore[arg-type]
    for field, flag in FLAGS.items():
        (option,) = of_command[field].annotation.__metadata__
        declared = [
            name for names in (option.default, *option.param_decls) for name in names.split("/")
        ]
        assert f"--{flag.name}" in declared
        assert (f"--{flag.opposite}" in declared) == (flag.kind is Kind.YES_OR_NO)
        assert option.help == flag.usage()
        assert of_pytest[f"--dm-env-rpc-{flag.name}"]["help"] == flag.usage()
    assert set(of_command) - set(FLAGS) == {"address", "only", "as_json"}
    assert len(of_pytest) - len(FLAGS) == len(["address", "command"])


def test_flags_that_were_not_given_leave_the_defaults() -> None:
    assert Options.from_flags({}) == Options()
    assert Options.from_flags(dict.fromkeys(FLAGS)) == Options()
    assert Options.from_flags({"several_worlds": "no"}) == Options(several_worlds=False)


@pytest.mark.skipif(sys.flags.optimize > 1, reason="without docstrings")
def test_the_docstring_explains_every_field() -> None:
    assert all(flag.help.endswith(".") for flag in FLAGS.values())
