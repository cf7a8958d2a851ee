"""Servers whose answers, errors, worlds or joins are wrong."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from google.rpc import status_pb2

from tests.compliance.breakage import BROKEN, breaks
from tests.compliance.playground import (
    WAIT_SECONDS,
    RequestError,
    Session,
    World,
    Worlds,
)

# Answers.

_SPEECHLESS = pb2.EnvironmentResponse(error=status_pb2.Status(code=3))

_SENT: dict[str, tuple[str, Callable[[Any, str], list[Any]]]] = {
    "answers a leave twice": (
        "one_answer_for_each_request",
        lambda response, kind: [response] * (2 if kind == "leave_world" else 1),
    ),
    "answers twice where there is an error": (
        "one_answer_for_each_request",
        lambda response, kind: [response] * (2 if kind == "error" else 1),
    ),
    "answers a leave with nothing in it": (
        "answers_are_of_the_requests_kind",
        lambda response, kind: [pb2.EnvironmentResponse() if kind == "leave_world" else response],
    ),
    "does not answer a destroy": (
        "a_world_can_be_created_and_destroyed",
        lambda response, kind: [] if kind == "destroy_world" else [response],
    ),
    "does not answer what fails": (
        "a_failed_request_is_answered",
        lambda response, kind: [] if kind == "error" else [response],
    ),
    "sends what is no message": (
        "a_world_can_be_joined",
        lambda response, kind: [_Garbage() if kind == "step" else response],
    ),
    "sends errors without a message": (
        "errors_have_a_code_and_a_message",
        lambda response, kind: [_SPEECHLESS if kind == "error" else response],
    ),
}  # fmt: skip
"""What is wrong with the answers, the check that is to notice, and what is sent for each."""

for _wrong, (_check, _sent) in _SENT.items():
    BROKEN[_wrong] = _check, type("Broken", (Session,), {"sent": staticmethod(_sent)})


class _ReadsAhead(Session):
    """Looks for another request before it answers."""

    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def read() -> None:
            try:
                for request in requests:
                    arrived.put(request)
            except Exception:
                pass  # The stream was cut.
            arrived.put(None)

        threading.Thread(target=read, daemon=True).start()
        while (request := arrived.get()) is not None:
            if not self.may_wait(request):
                yield from self.answers(request)
                continue
            try:
                another = arrived.get(timeout=0.02)
            except queue.Empty:
                yield from self.answers(request)
                continue
            if another is None:
                return
            yield from self.answers_of_two(request, another)

    def may_wait(self, request: Any) -> bool:
        return True

    def answers_of_two(self, request: Any, another: Any) -> Iterator[Any]:
        raise NotImplementedError


@breaks("pipelined_steps_are_answered_in_order")
class SwapsAnswersOfRequestsInFlight(_ReadsAhead):
    def answers_of_two(self, request: Any, another: Any) -> Iterator[Any]:
        first = list(self.answers(request))
        yield from self.answers(another)
        yield from first


@breaks("pipelined_requests_take_effect_in_order")
class LeavesAfterTheRequestThatFollows(_ReadsAhead):
    def may_wait(self, request: Any) -> bool:
        return bool(request.WhichOneof("payload") == "leave_world")

    def answers_of_two(self, request: Any, another: Any) -> Iterator[Any]:
        second = list(self.answers(another))
        yield from self.answers(request)
        yield from second


class _Garbage:
    def SerializeToString(self) -> bytes:  # noqa: N802
        return b"\xff\xff\xff"


# Errors.


@breaks("the_stream_survives_errors")
class EndsTheStreamAfterAnError(Session):
    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        for response in super().stream(requests):
            yield response
            if response.HasField("error"):
                return


@breaks("an_error_changes_no_state")
class EndsTheSequenceWhereThereIsAnError(Session):
    def sent(self, response: Any, kind: str) -> list[Any]:
        self.running = self.running and kind != "error"
        return [response]


@breaks("an_error_changes_no_state")
class BeginsTheSequenceBeforeItLooksAtTheRequest(Session):
    def check_requested(self, requested: set[int]) -> None:
        try:
            super().check_requested(requested)
        except RequestError:
            if not self.running:
                self.begin()
            raise


@breaks("an_error_changes_no_state")
class LeavesTheWorldWhereThereIsAnError(Session):
    def sent(self, response: Any, kind: str) -> list[Any]:
        if kind == "error":
            self.gone()
        return [response]


@breaks("a_request_without_payload_is_refused")
class TakesAnEmptyRequestForALeave(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        if request.WhichOneof("payload") is None:
            yield pb2.EnvironmentResponse(leave_world=pb2.LeaveWorldResponse())
        else:
            yield from super().answers(request)


# Worlds.


@breaks("names_of_worlds_are_unique")
class GivesAllWorldsOneName(Worlds):
    def create(self, settings: Mapping[str, Any]) -> str:
        super().create(settings)
        self.worlds["playground"] = World()
        return "playground"

    def destroy(self, name: str) -> None:
        self.find(name)


@breaks("names_of_worlds_are_unique_across_connections")
class NumbersTheWorldsOfEachConnection(Session):
    def __init__(self, worlds: Any):
        super().__init__(worlds)
        self.numbers = itertools.count()
        self.own: set[str] = set()

    def on_create_world(self, request: Any) -> Any:
        del self.worlds.worlds[super().on_create_world(request).world_name]
        name = f"world-{next(self.numbers)}"
        self.own.add(name)
        self.worlds.worlds[name] = World()
        return pb2.CreateWorldResponse(world_name=name)

    def on_destroy_world(self, request: Any) -> Any:
        if request.world_name in self.own:
            self.own.discard(request.world_name)
            self.worlds.worlds.setdefault(request.world_name, World())
        return super().on_destroy_world(request)


@breaks("an_unknown_world_cannot_be_destroyed")
class DestroysWorldsThatDoNotExist(Worlds):
    def destroy(self, name: str) -> None:
        if name in self.worlds:
            super().destroy(name)


@breaks("a_destroyed_world_cannot_be_joined")
class DoesNotReallyDestroy(Worlds):
    def destroy(self, name: str) -> None:
        world = self.find(name)
        super().destroy(name)
        self.worlds[name] = world


@breaks("a_joined_connection_cannot_destroy_its_world")
class DestroysTheCallerOwnWorld(Session):
    def on_destroy_world(self, request: Any) -> Any:
        if self.world is None or request.world_name != self.world_name:
            return super().on_destroy_world(request)
        del self.worlds.worlds[self.world_name]
        return pb2.DestroyWorldResponse()


@breaks("a_world_with_an_agent_is_destroyed_in_one_of_three_ways")
class DestroysAWorldInUseUnderAgentsWhoStepOn(Worlds):
    """The agent that asks is told nothing either."""

    def destroy(self, name: str) -> None:
        self.find(name)
        del self.worlds[name]


class _RefusingWorlds(Worlds):
    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def destroy(self, name: str) -> None:
        world = self.find(name)
        if world.agents:
            self.refused.add(name)
            self.changed.wait_for(lambda: not world.agents, WAIT_SECONDS)
        if name in self.refused:
            raise RequestError(f"world {name!r} had agents")
        super().destroy(name)


@breaks("a_world_with_an_agent_is_destroyed_in_one_of_three_ways")
class RefusesWhenTheAgentHasLeft(Session):
    worlds_class = _RefusingWorlds

    def on_destroy_world(self, request: Any) -> Any:
        if self.world is not None and request.world_name == self.world_name:
            raise RequestError("joined to it")
        return super().on_destroy_world(request)


@breaks("invalid_create_settings_are_refused")
class TakesInvalidCreateSettings(Worlds):
    def create(self, settings: Mapping[str, Any]) -> str:
        return super().create({})


@breaks("invalid_create_settings_are_refused")
class HasOneWorldForAnySettings(Worlds):
    """What is left of a world that should not be there has to be destroyed."""

    def create(self, settings: Mapping[str, Any]) -> str:
        if self.worlds:
            raise RequestError("there is a world")
        return super().create({})


@breaks("unknown_create_settings_are_refused")
class TakesMisspeltCreateSettings(Worlds):
    """It refuses the one that the options name."""

    def create(self, settings: Mapping[str, Any]) -> str:
        return super().create({name: 1 for name in settings if name == "unknown"})


def _taking_misspelt(method: str) -> type[Session]:
    """It refuses the name that the options know."""

    def take(session: Session, request: Any) -> Any:
        for name in set(request.settings) - {"unknown"}:
            del request.settings[name]
        return getattr(Session, method)(session, request)

    return type("Broken", (Session,), {method: take})


for _kind, _method in (("join", "on_join_world"), ("reset", "on_reset")):
    _check = f"unknown_{_kind}_settings_are_refused"
    BROKEN[f"takes misspelt {_kind} settings"] = _check, _taking_misspelt(_method)


@breaks("worlds_are_independent")
class LetsWorldsAffectEachOther(Session):
    def end_sequence(self) -> None:
        super().end_sequence()
        for world in self.worlds.worlds.values():
            for agent in world.agents:
                agent.running = False


# Joining and leaving.


@breaks("an_unknown_world_cannot_be_joined")
class JoinsAWorldThatDoesNotExist(Session):
    def on_join_world(self, request: Any) -> Any:
        known = self.worlds.worlds
        is_known = request.world_name in known
        known.setdefault(request.world_name, World())
        try:
            return super().on_join_world(request)
        finally:
            if not is_known:
                del known[request.world_name]


@breaks("a_joined_connection_cannot_join_again")
class JoinsTwice(Session):
    def on_join_world(self, request: Any) -> Any:
        self.leave()
        return super().on_join_world(request)


@breaks("step_and_reset_need_a_join")
class StepsBeforeAJoin(Session):
    def on_step(self, request: Any) -> Any:
        return super().on_step(request) if self.world else pb2.StepResponse(state=1)


@breaks("step_and_reset_need_a_join")
class ResetsBeforeAJoin(Session):
    def on_reset(self, request: Any) -> Any:
        return super().on_reset(request) if self.world else pb2.ResetResponse()


@breaks("leaving_while_not_joined_is_a_no_op")
class RefusesToLeaveWhileNotJoined(Session):
    def on_leave_world(self, request: Any) -> Any:
        self.check_joined()
        return super().on_leave_world(request)


@breaks("a_world_can_be_joined_again_after_a_leave")
class GoesOnWithTheSequenceAfterARejoin(Session):
    def on_join_world(self, request: Any) -> Any:
        response = super().on_join_world(request)
        self.running = hasattr(self, "force")
        return response
