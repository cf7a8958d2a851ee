"""Correct servers with little room, or with few requests: what they lack is no violation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.rpc import code_pb2

from tests.compliance import playground
from tests.compliance.broken_worlds import (
    EndsTheEarlierStream,
    EndsTheStreamsOfOthers,
    JoinsWhenTheServerIsFree,
    RefusesOthers,
)

_OPTIONAL = ("reset", "reset_world", "extension")


class OneClient(playground.Session):
    """Refuses every request of a connection beside another one."""

    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        open_streams = vars(self.worlds).setdefault("streams", [])
        open_streams.append(self)
        yield from super().stream(requests)

    def carry_out(self, kind: str | None, request: Any) -> Any:
        if vars(self.worlds)["streams"][0] is not self:
            raise playground.RequestError(
                "only one client can connect", code_pb2.RESOURCE_EXHAUSTED
            )
        return super().carry_out(kind, request)

    def gone(self) -> None:
        super().gone()
        with self.worlds.changed:
            streams = vars(self.worlds)["streams"]
            if self in streams:
                streams.remove(self)


class OneJoined(playground.Session):
    """Has one place, for whichever world."""

    def on_join_world(self, request: Any) -> Any:
        if any(world.agents for world in self.worlds.worlds.values()):
            raise playground.RequestError("only one client can join")
        return super().on_join_world(request)


class OnePerWorld(playground.Session):
    """Has one place in each world, which only a LeaveWorld frees."""

    class worlds_class(playground.Worlds):  # noqa: N801
        max_agents = 1

    def gone(self) -> None:
        pass


class FewRequests(OnePerWorld):
    """Knows what is required, and creates and destroys worlds; has its own code for the rest."""

    code: int = code_pb2.INTERNAL

    def carry_out(self, kind: str | None, request: Any) -> Any:
        if kind in _OPTIONAL:
            raise playground.RequestError(f"unsupported request {kind}", self.code)
        return super().carry_out(kind, request)


class StrictFewRequests(FewRequests):
    """Answers with the code for what is not implemented."""

    code = code_pb2.UNIMPLEMENTED


class TheWorld(playground.Worlds):
    """One world, which has no name and is there from the start; for one agent."""

    max_agents = 1

    def __init__(self) -> None:
        super().__init__()
        self.worlds[""] = playground.World()


class Minimal(playground.Session):
    """Knows only what every server must: to join the one world, step and leave."""

    worlds_class = TheWorld

    def carry_out(self, kind: str | None, request: Any) -> Any:
        if kind not in ("join_world", "step", "leave_world"):
            raise playground.RequestError(f"{kind} is not known here", code_pb2.UNIMPLEMENTED)
        return super().carry_out(kind, request)


_ONE = "the server accepts only one client at a time: "
_TWO = "this check needs 2 simultaneous connections, and the server accepts 1"
_AGENTS, _WORLDS = "agents_of_one_world_have_their_own_states", "worlds_are_independent"
_FULL = {_AGENTS: "a world accepts only one agent: the world is full"}

LIMITED: Mapping[type[playground.Session], tuple[list[str], dict[str, str]]] = {
    OneClient: ([], {_AGENTS: _TWO, _WORLDS: _TWO}),
    OneJoined: (
        [],
        {
            _AGENTS: "a world accepts only one agent: only one client can join",
            _WORLDS: "only one client can join at a time: only one client can join",
        },
    ),
    OnePerWorld: ([], _FULL),
    FewRequests: (["a_reset_is_taken", "a_reset_world_is_taken"], _FULL),
    StrictFewRequests: ([], _FULL),
    RefusesOthers: ([], {_WORLDS: f"{_ONE}another client is here"}),
    EndsTheStreamsOfOthers: ([], {_WORLDS: f"{_ONE}the end of the stream"}),
    EndsTheEarlierStream: ([], {_WORLDS: _TWO}),
    JoinsWhenTheServerIsFree: (
        [],
        {_WORLDS: "only one client can join at a time: no answer within "},
    ),
}
"""What is found on each, and with which reason checks are skipped."""
