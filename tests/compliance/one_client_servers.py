"""Servers that have one client at a time, in the ways in which servers do that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.rpc import code_pb2

from tests.compliance.breakage import breaks
from tests.compliance.playground import WAIT_SECONDS, RequestError, Session, World


def _has_others(session: Session, worlds: list[World]) -> bool:
    return any(agent is not session for world in worlds for agent in world.agents)


class _OneClient(Session):
    """The first client that does anything has the server, until it is gone."""

    def carry_out(self, kind: str | None, request: Any) -> Any:
        if kind != "leave_world":
            owner = vars(self.worlds).setdefault("owner", self)
            if owner is not self:
                self.refuse()
        return super().carry_out(kind, request)

    def refuse(self) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        super().gone()
        if vars(self.worlds).get("owner") is self:
            del self.worlds.owner


class RefusesOthers(_OneClient):
    def refuse(self) -> None:
        raise RequestError("another client is here", code_pb2.RESOURCE_EXHAUSTED)


class EndsTheStreamsOfOthers(_OneClient):
    def refuse(self) -> None:
        raise RuntimeError("another client is here")


class EndsTheEarlierStream(Session):
    """The newest client has the server."""

    is_out = False

    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        earlier = vars(self.worlds).get("newest")
        self.worlds.newest = self
        if earlier is not None:
            earlier.is_out = True
            earlier.gone()
        for request in requests:
            if self.is_out:
                raise RuntimeError("another client came")
            yield from self.answers(request)


class _Joining(Session):
    """Has one place: in each world, or on the server."""

    is_gone = False

    def on_join_world(self, request: Any) -> Any:
        self.wait_for_a_place([self.worlds.find(request.world_name)])
        return super().on_join_world(request)

    def wait_for_a_place(self, worlds: list[World]) -> None:
        self.worlds.changed.wait_for(
            lambda: self.is_gone or not any(world.agents for world in worlds), WAIT_SECONDS
        )

    def gone(self) -> None:
        self.is_gone = True
        super().gone()


class JoinsWhenTheServerIsFree(_Joining):
    def wait_for_a_place(self, worlds: list[World]) -> None:
        if self.world is None:
            super().wait_for_a_place(list(self.worlds.worlds.values()))


@breaks("an_error_changes_no_state")
class JoinsWhenTheWorldIsFree(_Joining):
    """It waits also for the agent itself that is joined already."""


@breaks("an_error_changes_no_state")
class EndsTheStreamWhereTheWorldIsTaken(_Joining):
    def wait_for_a_place(self, worlds: list[World]) -> None:
        if worlds[0].agents:
            raise RuntimeError("no place")


@breaks("a_step_changes_its_own_world_only")
class EndsTheStreamWhereTheServerIsTaken(_Joining):
    def wait_for_a_place(self, worlds: list[World]) -> None:
        if _has_others(self, list(self.worlds.worlds.values())):
            raise RuntimeError("no place")


@breaks("a_step_changes_its_own_world_only")
class RefusesStepsOfOthers(Session):
    """All can join, and the first that steps is the one that acts."""

    def on_step(self, request: Any) -> Any:
        self.check_joined()
        if vars(self.worlds).setdefault("acting", self) is not self:
            raise RequestError("another agent acts here")
        return super().on_step(request)

    def leave(self) -> None:
        super().leave()
        if vars(self.worlds).get("acting") is self:
            del self.worlds.acting


@breaks("a_world_can_be_joined_from_another_connection")
class HasWorldsForEachConnection(Session):
    """No connection sees the worlds of another."""

    def __init__(self, worlds: Any):
        super().__init__(type(worlds)())
