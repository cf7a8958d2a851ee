"""Servers whose worlds share what belongs to each of them alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from dm_env_rpc.v1 import tensor_utils

from tests.compliance.breakage import breaks
from tests.compliance.playground import LENGTH, LOWEST, PICTURE, REWARD, STEPS, Session, Worlds


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
class CountsTheStepsOfAllWorlds(Session):
    steps = _of_all_worlds("steps")


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
