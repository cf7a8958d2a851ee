"""Servers whose worlds share what belongs to each, and those that have one client at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from dm_env_rpc.v1 import tensor_utils
from google.rpc import code_pb2

from tests.compliance.breakage import breaks
from tests.compliance.playground import (
    LENGTH,
    LOWEST,
    PICTURE,
    REWARD,
    STEPS,
    WAIT_SECONDS,
    RequestError,
    Session,
    World,
    Worlds,
)


def _of_all_worlds(name: str) -> Any:
    """An attribute of a session that has one value for all sessions of the server."""

    def get(session: Session) -> Any:
        return vars(session.worlds).get(f"all_{name}", 0)

    def put(session: Session, value: Any) -> None:
        vars(session.worlds)[f"all_{name}"] = value

    return property(get, put)


def _others(session: Session) -> list[Session]:
    """The running agents of other worlds."""
    worlds = session.worlds.worlds.values()
    agents = [agent for world in worlds if world is not session.world for agent in world.agents]
    return [agent for agent in agents if agent.running]


@breaks("a_step_changes_its_own_world_only")
class HasOneEnvironmentForAllWorlds(Session):
    steps = _of_all_worlds("steps")
    force = _of_all_worlds("force")
    path = _of_all_worlds("path")
    said = _of_all_worlds("said")


class _Unpredictable(Session):
    def observe(self, requested: set[int]) -> Any:
        observations = super().observe(requested)
        for uid in requested & {STEPS, REWARD, PICTURE}:
            high, dtype = {
                STEPS: (LENGTH, np.int64),
                REWARD: (1 << 20, np.float32),
                PICTURE: (255, np.uint8),
            }[uid]
            shape = (3, 2) if uid == PICTURE else ()
            drawn = np.array([random.randint(0, high) for _ in range(int(np.prod(shape)))], dtype)
            observations[uid].CopyFrom(tensor_utils.pack_tensor(drawn.reshape(shape)))
        return observations


@breaks("a_step_changes_its_own_world_only")
class HasOneUnpredictableEnvironmentForAllWorlds(_Unpredictable, HasOneEnvironmentForAllWorlds):
    """Its observations tell nothing, but its sequences have one length."""


@breaks("a_step_changes_its_own_world_only")
class MovesTheAgentsOfAllWorlds(Session):
    def act(self, actions: Mapping[str, Any]) -> int:
        for agent in _others(self):
            agent.steps += 1
        return super().act(actions)


@breaks("a_step_changes_its_own_world_only")
class DrawsFromOneSeededGenerator(Session):
    """A world repeats itself, because it seeds the generator, unless another draws from it too."""

    def begin(self) -> None:
        super().begin()
        vars(self.worlds)["generator"] = np.random.default_rng(7)

    def observe(self, requested: set[int]) -> Any:
        observations = super().observe(requested)
        drawn = vars(self.worlds)["generator"].integers(0, 255, (3, 2)).astype(np.uint8)
        if PICTURE in requested:
            observations[PICTURE].CopyFrom(tensor_utils.pack_tensor(drawn))
        return observations


@breaks("a_step_changes_its_own_world_only")
class ReplacesTheEnvironmentWithEachNewWorld(Worlds):
    def create(self, settings: Mapping[str, Any]) -> str:
        for world in self.worlds.values():
            for agent in world.agents:
                agent.begin()
        return super().create(settings)


@breaks("worlds_are_independent")
class BeginsOtherSequencesAgainWhereOneEnds(_Unpredictable):
    """Neither observations nor lengths repeat: only the refusal of unknown actions tells."""

    def begin(self) -> None:
        super().begin()
        self.steps = random.randint(0, LENGTH - 1) - LENGTH

    def observe(self, requested: set[int]) -> Any:
        self.force = LOWEST + np.float32(random.random())
        self.path = np.full((2, 1), random.random())
        self.said = str(random.random())
        return super().observe(requested)

    def act(self, actions: Mapping[str, Any]) -> int:
        state = super().act(actions)
        if state != pb2.RUNNING:
            for agent in _others(self):
                agent.running = False
        return state


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
