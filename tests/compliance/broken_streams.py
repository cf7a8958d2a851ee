"""Servers whose answers, errors, worlds or joins are wrong."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from google.rpc import status_pb2

from tests.compliance.breakage import breaks, breaks_worlds
from tests.compliance.playground import (
    RequestError,
    Session,
    World,
    Worlds,
)


def is_error(response: Any) -> bool:
    return bool(response.WhichOneof("payload") == "error")


# Answers.


@breaks("answers a leave twice", "one_answer_for_each_request")
class AnswersALeaveTwice(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            yield response
            if request.WhichOneof("payload") == "leave_world":
                yield response


@breaks("answers twice where there is an error", "one_answer_for_each_request")
class AnswersTwiceWhereThereIsAnError(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            yield response
            if is_error(response):
                yield response


@breaks("does not answer a destroy", "a_world_can_be_created_and_destroyed")
class DoesNotAnswerADestroy(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            if response.WhichOneof("payload") != "destroy_world":
                yield response


@breaks("does not answer what fails", "a_failed_request_is_answered")
class DoesNotAnswerWhatFails(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            if not is_error(response):
                yield response


@breaks("swaps answers of requests in flight", "pipelined_steps_are_answered_in_order")
class SwapsAnswersOfRequestsInFlight(Session):
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
            first = list(self.answers(request))
            try:
                another = arrived.get(timeout=0.02)
            except queue.Empty:
                yield from first
                continue
            if another is None:
                return
            yield from self.answers(another)
            yield from first


@breaks("answers a reset with a join", "a_reset_is_taken")
class AnswersAResetWithAJoin(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            if response.WhichOneof("payload") == "reset":
                response = pb2.EnvironmentResponse(  # noqa: PLW2901
                    join_world=pb2.JoinWorldResponse(specs=response.reset.specs)
                )
            yield response


@breaks("answers a leave with nothing in it", "leaving_while_not_joined_is_a_no_op")
class AnswersALeaveWithNothingInIt(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            if response.WhichOneof("payload") == "leave_world":
                response = pb2.EnvironmentResponse()  # noqa: PLW2901
            yield response


@breaks("sends what is no message", "a_world_can_be_joined")
class SendsWhatIsNoMessage(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            if response.WhichOneof("payload") == "step":
                response = _Garbage()  # noqa: PLW2901
            yield response


class _Garbage:
    def SerializeToString(self) -> bytes:  # noqa: N802
        return b"\xff\xff\xff"


# Errors.


@breaks("ends the stream after an error", "the_stream_survives_errors")
class EndsTheStreamAfterAnError(Session):
    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        for response in super().stream(requests):
            yield response
            if is_error(response):
                return


@breaks("sends errors without a message", "errors_have_a_code_and_a_message")
class SendsErrorsWithoutAMessage(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            if is_error(response):
                response.error.CopyFrom(status_pb2.Status(code=3))
            yield response


@breaks("ends the sequence where there is an error", "an_error_changes_no_state")
class EndsTheSequenceWhereThereIsAnError(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            if is_error(response):
                self.running = False
            yield response


@breaks("begins the sequence before it looks at the request", "an_error_changes_no_state")
class BeginsTheSequenceBeforeItLooksAtTheRequest(Session):
    def check_requested(self, requested: set[int]) -> None:
        try:
            super().check_requested(requested)
        except RequestError:
            if not self.running:
                self.begin()
            raise


@breaks("leaves the world where there is an error", "an_error_changes_no_state")
class LeavesTheWorldWhereThereIsAnError(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        for response in super().answers(request):
            if is_error(response):
                self.gone()
            yield response


@breaks("takes an empty request for a leave", "a_request_without_payload_is_refused")
class TakesAnEmptyRequestForALeave(Session):
    def answers(self, request: Any) -> Iterator[Any]:
        if request.WhichOneof("payload") is None:
            yield pb2.EnvironmentResponse(leave_world=pb2.LeaveWorldResponse())
        else:
            yield from super().answers(request)


# Worlds.


@breaks_worlds("gives all worlds one name", "names_of_worlds_are_unique")
class GivesAllWorldsOneName(Worlds):
    def create(self, settings: Mapping[str, Any]) -> str:
        super().create(settings)
        self.worlds["playground"] = World()
        return "playground"

    def destroy(self, name: str) -> None:
        self.find(name)


@breaks_worlds("destroys worlds that do not exist", "an_unknown_world_cannot_be_destroyed")
class DestroysWorldsThatDoNotExist(Worlds):
    def destroy(self, name: str) -> None:
        if name in self.worlds:
            super().destroy(name)


@breaks_worlds("does not really destroy", "a_destroyed_world_cannot_be_joined")
class DoesNotReallyDestroy(Worlds):
    def destroy(self, name: str) -> None:
        self.find(name)


@breaks_worlds("destroys the caller's own world", "a_joined_connection_cannot_destroy_its_world")
class DestroysTheCallerOwnWorld(Worlds):
    def destroy(self, name: str) -> None:
        self.find(name)
        del self.worlds[name]


@breaks_worlds("takes invalid create settings", "invalid_create_settings_are_refused")
class TakesInvalidCreateSettings(Worlds):
    def create(self, settings: Mapping[str, Any]) -> str:
        return super().create({})


@breaks("lets worlds affect each other", "worlds_are_independent")
class LetsWorldsAffectEachOther(Session):
    def end_sequence(self) -> None:
        super().end_sequence()
        for world in self.worlds.worlds.values():
            for agent in world.agents:
                agent.running = False


# Joining and leaving.


@breaks_worlds("joins a world that does not exist", "an_unknown_world_cannot_be_joined")
class JoinsAWorldThatDoesNotExist(Worlds):
    def find(self, name: str) -> World:
        return self.worlds.get(name) or next(iter(self.worlds.values()), World())


@breaks("joins twice", "a_joined_connection_cannot_join_again")
class JoinsTwice(Session):
    def on_join_world(self, request: Any) -> Any:
        self.leave()
        return super().on_join_world(request)


@breaks("steps before a join", "step_and_reset_need_a_join")
class StepsBeforeAJoin(Session):
    def on_step(self, request: Any) -> Any:
        return super().on_step(request) if self.world else pb2.StepResponse(state=1)


@breaks("resets before a join", "step_and_reset_need_a_join")
class ResetsBeforeAJoin(Session):
    def on_reset(self, request: Any) -> Any:
        return super().on_reset(request) if self.world else pb2.ResetResponse()


@breaks("refuses to leave while not joined", "leaving_while_not_joined_is_a_no_op")
class RefusesToLeaveWhileNotJoined(Session):
    def on_leave_world(self, request: Any) -> Any:
        self.check_joined()
        return super().on_leave_world(request)


@breaks("goes on stepping after a leave", "pipelined_requests_take_effect_in_order")
class GoesOnSteppingAfterALeave(Session):
    def check_joined(self) -> None:
        pass


@breaks("goes on with the sequence after a rejoin", "a_world_can_be_joined_again_after_a_leave")
class GoesOnWithTheSequenceAfterARejoin(Session):
    def on_join_world(self, request: Any) -> Any:
        response = super().on_join_world(request)
        self.running = hasattr(self, "force")
        return response
