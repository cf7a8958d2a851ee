"""Servers whose sequences or resets are wrong."""

from __future__ import annotations

from typing import Any

from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2

from tests.compliance.breakage import BROKEN, breaks
from tests.compliance.playground import (
    STEPS,
    RequestError,
    Session,
    Worlds,
)

# Sequences.

BROKEN["sends state0"] = (
    "states_are_those_of_the_protocol", type("Broken", (Session,), {"end_state": lambda _: 0}),
)  # fmt: skip


@breaks("states_follow_each_other")
class IsTerminatedTwice(Session):
    twice = False

    def on_step(self, request: Any) -> Any:
        if self.twice:
            self.twice = False
            return pb2.StepResponse(state=pb2.TERMINATED)
        response = super().on_step(request)
        self.twice = response.state == pb2.TERMINATED
        return response


@breaks("states_follow_each_other")
class NeedsAResetAfterTheEndOfASequence(Session):
    def on_step(self, request: Any) -> Any:
        if not self.running and self.steps:
            raise RequestError("reset first")
        return super().on_step(request)

    def end_sequence(self) -> None:
        super().end_sequence()
        self.steps = 0


@breaks("the_first_step_ignores_its_actions")
class ChecksTheActionsOfAFirstStep(Session):
    def on_step(self, request: Any) -> Any:
        self.unpack(request.actions)
        return super().on_step(request)


class DemandsActions(Session):
    """Refuses a step of a running sequence without actions, as chess does, which is no finding."""

    def on_step(self, request: Any) -> Any:
        if self.running and not self.interrupted and not request.actions:
            raise RequestError("a move is missing")
        return super().on_step(request)


@breaks("a_first_step_needs_no_actions")
class DemandsActionsAtOnce(Session):
    def on_step(self, request: Any) -> Any:
        if self.world is not None and not request.actions:
            raise RequestError("a move is missing")
        return super().on_step(request)


@breaks("a_reset_ends_the_sequence")
class DemandsActionsAndDoesNotReset(DemandsActions):
    def on_reset(self, request: Any) -> Any:
        was_running = self.running
        response = super().on_reset(request)
        self.running = was_running
        return response


@breaks("a_reset_sends_the_specs_again")
class SendsNoSpecsWithAReset(Session):
    def on_reset(self, request: Any) -> Any:
        super().on_reset(request)
        return pb2.ResetResponse()


@breaks("a_reset_sends_the_specs_again")
class SendsOtherSpecsWithAResetThanItHas(Session):
    def on_reset(self, request: Any) -> Any:
        response = super().on_reset(request)
        response.specs.observations[STEPS].name = "count"
        return response


@breaks("a_reset_between_sequences_changes_nothing")
class BeginsASequenceAtASecondReset(Session):
    resets = 0

    def begin(self) -> None:
        super().begin()
        self.resets = 0

    def on_reset(self, request: Any) -> Any:
        response = super().on_reset(request)
        self.resets += 1
        if self.resets > 1:
            self.begin()
        return response


@breaks("a_reset_ends_the_sequence")
class StaysInItsSequenceAtAReset(Session):
    def on_reset(self, request: Any) -> Any:
        was_running = self.running
        response = super().on_reset(request)
        self.running = was_running
        return response


@breaks("invalid_reset_settings_are_refused")
class TakesInvalidResetSettings(Session):
    def on_reset(self, request: Any) -> Any:
        request.settings.clear()
        return super().on_reset(request)


# ResetWorld.


@breaks("an_unknown_world_cannot_be_reset")
class ResetsAWorldThatDoesNotExist(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        if name in self.worlds:
            super().reset(name, caller)


@breaks("a_spectator_resets_a_world_with_an_agent")
class DoesNotWaitForAgents(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        for agent in self.find(name).agents:
            agent.interrupted = agent is not caller and agent.running
            agent.running = agent.running and agent is not caller


@breaks("a_spectator_resets_a_world_with_an_agent")
class DoesNotTellAgents(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        for agent in self.find(name).agents:
            agent.running = False


@breaks("an_agent_resets_its_world")
class TellsTheCallerByAStepToo(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        caller.interrupted = caller.running
        others = [agent for agent in self.find(name).agents if agent is not caller]
        for agent in others:
            agent.interrupted = agent.running
        self.changed.wait_for(lambda: not any(agent.interrupted for agent in others), 2)


@breaks("an_agent_resets_its_world")
class LeavesTheCallerInItsSequence(Worlds):
    def reset(self, name: str, caller: Session) -> None:
        was_running = caller.running
        super().reset(name, caller)
        caller.running = was_running
