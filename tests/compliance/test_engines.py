"""What the suite says about servers as the authors of engines first write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, Result, run
from tests.compliance import playground
from tests.compliance.breakage import session_of
from tests.compliance.broken_streams import DestroysTheCallerOwnWorld
from tests.compliance.broken_streams import EndsTheStreamAfterAnError as EndsTheStream
from tests.reliability.recording import Seen
from tests.support.stopwatch import patience

OPTIONS = Options(quiet_seconds=0.05)


def findings(
    session_class: type[playground.Session], about: str = "", **given: Any
) -> list[Result]:
    options = dataclasses.replace(OPTIONS, timeout=patience(2.0), **given)
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


def test_with_a_setting_known_to_be_invalid_it_is_one_failure() -> None:
    found = findings(TakesAnySettings, "settings", invalid_create_settings={"seeed": 1})
    assert texts(found) == [("invalid_create_settings_are_refused", Outcome.FAILED)]


class DestroysAnything(playground.Worlds):
    def destroy(self, name: str) -> None:
        self.worlds.pop(name, None)


class DestroysNothingInUse(playground.Worlds):
    """It has one world, and says that it has destroyed it where it has not."""

    def create(self, settings: Mapping[str, Any]) -> str:
        if self.worlds:
            raise playground.RequestError("there is a world")
        return super().create(settings)

    def destroy(self, name: str) -> None:
        if name in self.worlds and not self.worlds[name].agents:
            super().destroy(name)


@pytest.mark.parametrize(
    ("worlds", "about"),
    # What is left of the only world would be a finding of every check.
    [(DestroysAnything, "destroy"), (DestroysNothingInUse, "")],
)
def test_a_destroy_that_always_succeeds_breaks_two_rules(
    worlds: type[playground.Worlds], about: str
) -> None:
    found = findings(session_of(worlds), about)
    assert texts(found) == [
        ("an_unknown_world_cannot_be_destroyed", Outcome.WARNED),
        ("a_world_with_an_agent_is_destroyed_in_one_of_three_ways", Outcome.FAILED),
    ], [str(each) for each in found]


class DestroysItsOwnWorld(EndsTheStream, DestroysTheCallerOwnWorld):
    """A server may end the stream after an error."""


def test_a_joined_connection_is_tried_also_where_errors_end_the_stream() -> None:
    assert texts(findings(DestroysItsOwnWorld, "destroy")) == [
        ("a_joined_connection_cannot_destroy_its_world", Outcome.WARNED)
    ]


class DemandsActions(playground.Session):
    """Refuses a step of a running sequence without actions, as chess does."""

    def on_step(self, request: Any) -> Any:
        if self.running and not self.interrupted and not request.actions:
            raise playground.RequestError("a move is missing")
        return super().on_step(request)


class DemandsActionsAtOnce(playground.Session):
    def on_step(self, request: Any) -> Any:
        if self.world is not None and not request.actions:
            raise playground.RequestError("a move is missing")
        return super().on_step(request)


class DemandsActionsAndDoesNotReset(DemandsActions):
    def on_reset(self, request: Any) -> Any:
        was_running = self.running
        response = super().on_reset(request)
        self.running = was_running
        return response


def test_an_engine_may_demand_actions_in_a_sequence() -> None:
    assert texts(findings(DemandsActions)) == []


@pytest.mark.row(30)
def test_an_engine_that_demands_actions_of_a_first_step(seen: Seen) -> None:
    found = findings(DemandsActionsAtOnce)
    seen(servers_with_one_cause=1, their_findings=len(found))
    assert texts(found) == [("a_first_step_needs_no_actions", Outcome.FAILED)], found
    text = str(found[0])
    assert "companions" not in text
    assert "ignores its actions" in text
    assert "'StepRequest/Response' in the protocol reference" in text
    assert "a move is missing" in text


@pytest.mark.row(30)
def test_a_reset_that_does_not_end_the_sequence(seen: Seen) -> None:
    found = findings(DemandsActionsAndDoesNotReset)
    seen(servers_with_one_cause=1, their_findings=len(found))
    assert texts(found) == [("a_reset_ends_the_sequence", Outcome.FAILED)]
