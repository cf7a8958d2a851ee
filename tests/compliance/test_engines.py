"""What the suite says about servers as the authors of engines first write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, Result, run
from tests.compliance import broken_properties, playground
from tests.compliance.breakage import session_of
from tests.compliance.broken_sequences import DemandsActions
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
