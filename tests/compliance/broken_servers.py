"""Servers that break one rule each, and the check that is there to notice."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from dm_env_rpc.v1 import tensor_utils
from google.rpc import status_pb2

from tests.compliance.playground import (
    FORCE,
    GRIP,
    HEARD,
    PATH,
    PICTURE,
    REWARD,
    SEEN_FORCE,
    STEPS,
    RequestError,
    Session,
    World,
    Worlds,
    make_specs,
)

BROKEN: dict[str, tuple[str, type[Session]]] = {}
"""What is wrong -> the check that is to notice, and the server."""


def breaks(wrong: str, check: str) -> Any:
    def add(session_class: type[Session]) -> type[Session]:
        assert wrong not in BROKEN
        BROKEN[wrong] = (check, session_class)
        return session_class

    return add


def breaks_worlds(wrong: str, check: str) -> Any:
    def add(worlds: type[Worlds]) -> type[Worlds]:
        breaks(wrong, check)(type("Broken", (Session,), {"worlds_class": worlds}))
        return worlds

    return add


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


@breaks("does not answer what fails", "an_error_fails_its_own_request_only")
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
                another = None
            if another is not None:
                yield from self.answers(another)
            yield from first


@breaks("answers a reset with a join", "a_reset_sends_the_specs_again")
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


@breaks("leaves the world where there is an error", "the_stream_survives_errors")
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


# Specs.


class _WithSpecs(Session):
    def specs(self) -> Any:
        specs = super().specs()
        self.spoil(specs)
        return specs

    def spoil(self, specs: Any) -> None:
        raise NotImplementedError


@breaks("names two actions alike", "names_are_unique")
class NamesTwoActionsAlike(_WithSpecs):
    def spoil(self, specs: Any) -> None:
        specs.actions[GRIP].name = "path"


@breaks("names an observation like the parent of another", "no_name_is_the_parent_of_another")
class NamesAnObservationLikeTheParentOfAnother(_WithSpecs):
    def spoil(self, specs: Any) -> None:
        specs.observations[HEARD].name = "arm"


@breaks("has two variable dimensions", "at_most_one_dimension_is_variable")
class HasTwoVariableDimensions(_WithSpecs):
    def spoil(self, specs: Any) -> None:
        specs.actions[PATH].shape[:] = [-1, -1]


@breaks("has a data type that there is none of", "data_types_are_valid")
class HasADataTypeThatThereIsNoneOf(_WithSpecs):
    def spoil(self, specs: Any) -> None:
        specs.observations[PICTURE].dtype = 0


@breaks("has a minimum above its maximum", "bounds_make_sense")
class HasAMinimumAboveItsMaximum(_WithSpecs):
    def spoil(self, specs: Any) -> None:
        specs.observations[STEPS].min.int64s.array[:] = [100]


@breaks("has a bound that is NaN", "bounds_make_sense")
class HasABoundThatIsNan(_WithSpecs):
    def spoil(self, specs: Any) -> None:
        specs.actions[PATH].max.doubles.array[:] = [float("nan")]


@breaks("has bounds of another number than elements", "bounds_make_sense")
class HasBoundsOfAnotherNumberThanElements(_WithSpecs):
    def spoil(self, specs: Any) -> None:
        del specs.actions[FORCE].min.floats.array[5]


# Observations.


@breaks("returns what was not requested", "nothing_is_returned_unless_requested")
class ReturnsWhatWasNotRequested(Session):
    def observe(self, requested: set[int]) -> Any:
        return super().observe(set(make_specs().observations))


@breaks("returns one observation too few", "what_is_requested_is_returned")
class ReturnsOneObservationTooFew(Session):
    def observe(self, requested: set[int]) -> Any:
        return super().observe(requested - {PICTURE})


@breaks("has no observations in the last step", "the_last_step_returns_observations")
class HasNoObservationsInTheLastStep(Session):
    def observe(self, requested: set[int]) -> Any:
        return super().observe(requested if self.running else set())


@breaks("takes unknown observations", "unknown_observations_are_refused")
class TakesUnknownObservations(Session):
    def check_requested(self, requested: set[int]) -> None:
        requested &= set(make_specs().observations)


@breaks("refuses duplicate requests", "duplicate_requests_are_redundant")
class RefusesDuplicateRequests(Session):
    def on_step(self, request: Any) -> Any:
        uids = request.requested_observations
        if len(set(uids)) < len(uids):
            raise RequestError("twice")
        return super().on_step(request)


class _Observing(Session):
    def observe(self, requested: set[int]) -> Any:
        observations = super().observe(requested)
        for uid in requested:
            self.spoil(uid, observations[uid])
        return observations

    def spoil(self, uid: int, tensor: Any) -> None:
        raise NotImplementedError


@breaks("observes another type", "observations_have_the_shape_and_type_of_their_specs")
class ObservesAnotherType(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == REWARD:
            tensor.CopyFrom(tensor_utils.pack_tensor(1.0))


@breaks("observes another shape", "observations_have_the_shape_and_type_of_their_specs")
class ObservesAnotherShape(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == PICTURE:
            tensor.shape[:] = [2, 3]


@breaks(
    "observes fewer elements than the shape", "observations_have_the_shape_and_type_of_their_specs"
)
class ObservesFewerElementsThanTheShape(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == PICTURE:
            tensor.uint8s.array = b"12345"


@breaks("observes what is out of bounds", "observations_are_within_their_bounds")
class ObservesWhatIsOutOfBounds(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == STEPS:
            tensor.int64s.array[:] = [-1]


@breaks("observes in column-major order", "observations_are_within_their_bounds")
class ObservesInColumnMajorOrder(_Observing):
    def spoil(self, uid: int, tensor: Any) -> None:
        if uid == SEEN_FORCE:
            tensor.floats.array[:] = list(np.reshape(tensor.floats.array, (2, 3)).T.ravel())


# Actions.


@breaks("takes unknown actions", "unknown_actions_are_refused")
class TakesUnknownActions(Session):
    def check_uid(self, uid: int) -> None:
        pass


@breaks("takes actions of another type", "actions_of_another_type_are_refused")
class TakesActionsOfAnotherType(Session):
    def check_type(self, action: Any, tensor: Any) -> None:
        if tensor.WhichOneof("payload") is None:
            raise RequestError("empty")


@breaks("takes actions without a payload", "actions_without_payload_are_refused")
class TakesActionsWithoutAPayload(Session):
    def unpack(self, tensors: Mapping[int, Any]) -> dict[str, Any]:
        return super().unpack(
            {uid: tensor for uid, tensor in tensors.items() if tensor.WhichOneof("payload")}
        )


@breaks("takes actions of another shape", "actions_of_another_shape_are_refused")
class TakesActionsOfAnotherShape(Session):
    def check_shape(self, action: Any, value: Any) -> None:
        pass

    def check_bounds(self, action: Any, value: Any) -> None:
        pass


@breaks("takes actions that are out of range", "actions_out_of_range_are_refused")
class TakesActionsThatAreOutOfRange(Session):
    def check_bounds(self, action: Any, value: Any) -> None:
        pass


@breaks("looks at the first bound of an element only", "actions_out_of_range_are_refused")
class LooksAtTheFirstBoundOfAnElementOnly(Session):
    def bounds(self, action: Any) -> tuple[Any, Any]:
        low, high = super().bounds(action)
        return (None, None) if low is None else (np.min(low), np.max(high))


@breaks("has one maximum for all that is one too high", "actions_out_of_range_are_refused")
class HasOneMaximumForAllThatIsOneTooHigh(Session):
    def bounds(self, action: Any) -> tuple[Any, Any]:
        low, high = super().bounds(action)
        return (low, high + 1) if action.name == "arm.grip" else (low, high)


@breaks("has bounds that are exclusive", "actions_at_their_bounds_are_taken")
class HasBoundsThatAreExclusive(Session):
    def check_bounds(self, action: Any, value: Any) -> None:
        low, high = self.bounds(action)
        if low is not None and not (np.all(value > low) and np.all(value < high)):
            raise RequestError("out of range")


@breaks("does not broadcast", "one_element_is_broadcast")
class DoesNotBroadcast(Session):
    def to_array(self, tensor: Any) -> Any:
        value = tensor_utils.unpack_proto(tensor)
        try:
            return value.reshape(list(tensor.shape)) if tensor.shape else value[0]
        except ValueError as error:
            raise RequestError(str(error)) from error


@breaks("does not infer lengths", "a_negative_length_is_inferred")
class DoesNotInferLengths(Session):
    def to_array(self, tensor: Any) -> Any:
        if any(size < 0 for size in tensor.shape):
            raise RequestError("negative length")
        return super().to_array(tensor)


@breaks("takes actions for column-major", "actions_at_their_bounds_are_taken")
class TakesActionsForColumnMajor(Session):
    def to_array(self, tensor: Any) -> Any:
        value = super().to_array(tensor)
        return value.ravel().reshape(value.shape, order="F") if np.ndim(value) else value


@breaks("takes one length only where it is variable", "a_variable_dimension_takes_any_length")
class TakesOneLengthOnlyWhereItIsVariable(Session):
    def check_shape(self, action: Any, value: Any) -> None:
        super().check_shape(action, value)
        if action.name == "path" and np.shape(value)[1] > 3:
            raise RequestError("too long")


# Sequences.


@breaks("sends state 0", "states_are_those_of_the_protocol")
class SendsState0(Session):
    def end_state(self) -> int:
        return 0


@breaks("is TERMINATED twice", "states_follow_each_other")
class IsTerminatedTwice(Session):
    twice = False

    def on_step(self, request: Any) -> Any:
        if self.twice:
            self.twice = False
            return pb2.StepResponse(state=pb2.TERMINATED)
        response = super().on_step(request)
        self.twice = response.state == pb2.TERMINATED
        return response


@breaks("needs a Reset after the end of a sequence", "states_follow_each_other")
class NeedsAResetAfterTheEndOfASequence(Session):
    def on_step(self, request: Any) -> Any:
        if not self.running and self.steps:
            raise RequestError("reset first")
        return super().on_step(request)

    def end_sequence(self) -> None:
        super().end_sequence()
        self.steps = 0


@breaks("checks the actions of a first step", "the_first_step_ignores_its_actions")
class ChecksTheActionsOfAFirstStep(Session):
    def on_step(self, request: Any) -> Any:
        self.unpack(request.actions)
        return super().on_step(request)


@breaks("sends no specs with a Reset", "a_reset_sends_the_specs_again")
class SendsNoSpecsWithAReset(Session):
    def on_reset(self, request: Any) -> Any:
        super().on_reset(request)
        return pb2.ResetResponse()


@breaks("sends other specs with a Reset than it has", "a_reset_between_sequences_changes_nothing")
class SendsOtherSpecsWithAResetThanItHas(Session):
    def on_reset(self, request: Any) -> Any:
        response = super().on_reset(request)
        response.specs.observations[STEPS].name = "count"
        return response


@breaks("stays in its sequence at a Reset", "a_reset_ends_the_sequence")
class StaysInItsSequenceAtAReset(Session):
    def end_sequence(self) -> None:
        pass


@breaks("takes invalid reset settings", "invalid_reset_settings_are_refused")
class TakesInvalidResetSettings(Session):
    def on_reset(self, request: Any) -> Any:
        request.settings.clear()
        return super().on_reset(request)


# ResetWorld.


@breaks_worlds("resets a world that does not exist", "an_unknown_world_cannot_be_reset")
class ResetsAWorldThatDoesNotExist(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        if name in self.worlds:
            super().reset(name, caller)


@breaks_worlds("does not wait for agents", "a_spectator_resets_a_world_with_an_agent")
class DoesNotWaitForAgents(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        for agent in self.find(name).agents:
            agent.interrupted = agent is not caller and agent.running
            agent.running = agent.running and agent is not caller


@breaks_worlds("does not tell agents", "a_spectator_resets_a_world_with_an_agent")
class DoesNotTellAgents(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        for agent in self.find(name).agents:
            agent.running = False


@breaks_worlds("tells the caller by a step too", "an_agent_resets_its_world")
class TellsTheCallerByAStepToo(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        caller.interrupted = caller.running
        others = [agent for agent in self.find(name).agents if agent is not caller]
        for agent in others:
            agent.interrupted = agent.running
        self.changed.wait_for(lambda: not any(agent.interrupted for agent in others), 2)


@breaks_worlds("leaves the caller in its sequence", "an_agent_resets_its_world")
class LeavesTheCallerInItsSequence(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        was_running = caller.running
        super().reset(name, caller)
        caller.running = was_running
