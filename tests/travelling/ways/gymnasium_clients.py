"""Clients of Gymnasium."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from dm_env_rpc_client.adaptors.gymnasium.dict_vector_env import DictVectorEnv
from dm_env_rpc_client.adaptors.gymnasium.from_dm_env import make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.errors import DmEnvRpcError, EnvironmentsFailedError
from tests.travelling.in_process import (
    OPTIONS,
    ROWS,
    action_of,
    given_to_reset,
    row_of_infos,
    rows_of_observations,
    seed_of,
)
from tests.travelling.told import Call, Event, Failed, Lost, Opened, Tale, Told, kept


def failed(error: Exception) -> Failed:
    """Returns an error as a player notes it."""
    code = error.code_name if isinstance(error, DmEnvRpcError) else type(error).__name__
    return Failed(code, str(error))


def rows_of_failure(error: Exception) -> list[Event]:
    """Returns what each row is told of an error."""
    if isinstance(error, EnvironmentsFailedError):
        failures = error.failures
        return [failed(failures[row]) if row in failures else Lost() for row in ROWS]
    return [failed(error)] * len(ROWS)


def actions_of_rows(space: spaces.Space[Any], position: int) -> Any:
    """The actions of a call, of all rows."""
    actions = [action_of(space, position, row) for row in ROWS]
    empty: Any = create_empty_array(space, len(ROWS))
    return concatenate(space, actions, empty)


def first_failure(error: Exception) -> Failed:
    """Returns the first error of those of rows that could not be opened; others are not made."""
    if isinstance(error, EnvironmentsFailedError):
        return failed(next(iter(error.failures.values())))
    return failed(error)


def play_single(
    address: str, habit: str, calls: Sequence[Call], takes_seeds: bool = True, **options: Any
) -> list[Tale]:
    """Plays the last row alone, by `Remote-v0`."""
    row = ROWS[-1]
    try:
        env = make_remote(address, {"habit": habit, "row": row}, **options)
    except Exception as error:
        return [[failed(error)]]
    with contextlib.closing(env):
        tale: Tale = [Opened(env.action_space, env.observation_space)]
        for position, call in enumerate(calls):
            try:
                if call == "s":
                    action = action_of(env.action_space, position, row)
                    observation, reward, *ends, info = kept(env.step(action))
                    tale.append(Told(observation, info, reward, *ends))
                else:
                    given = given_to_reset(row, call == "R" and takes_seeds)
                    tale.append(Told(*kept(env.reset(**given))))
            except Exception as error:
                tale.append(failed(error))
        return [tale]


def play_vector(
    open_envs: Callable[[], RemoteVectorEnv], calls: Sequence[Call], takes_seeds: bool = True
) -> list[Tale]:
    """Plays all rows at once, by `RemoteVectorEnv`."""
    try:
        envs = open_envs()
    except Exception as error:
        return [[first_failure(error)] for _ in ROWS]
    with envs:
        player = _Vector(envs, takes_seeds)
        tales: list[Tale] = [
            [Opened(envs.action_space, envs.single_observation_space)] for _ in ROWS
        ]
        for position, call in enumerate(calls):
            try:
                events = player.call(call, position)
            except Exception as error:
                events = rows_of_failure(error)
            for tale, event in zip(tales, events, strict=True):
                tale.append(event)
        return tales


_FINAL = ("final_obs", "_final_obs", "final_info", "_final_info")


class _Vector:
    """Makes one call after the other."""

    def __init__(self, envs: RemoteVectorEnv, takes_seeds: bool):
        self._envs, self._takes_seeds = envs, takes_seeds
        self._mode = envs.metadata["autoreset_mode"]
        self._begun: list[Event] | None = None
        """What began in the step before, with the autoreset mode SAME_STEP."""

    def call(self, call: Call, position: int) -> list[Event]:
        begun, self._begun = self._begun, None
        envs = self._envs
        if call == "r" and begun is not None:
            return begun
        if call == "R":
            seeds = [seed_of(row) for row in ROWS]
            given: dict[str, Any] = {}
            if self._takes_seeds:
                given = {"seed": seeds, "options": dict(OPTIONS)}
            observations, infos = kept(envs.reset(**given))
            return [Told(*each) for each in self._rows(observations, infos)]
        if call == "r" and self._mode is AutoresetMode.DISABLED:
            mask = {"reset_mask": np.ones(len(ROWS), np.bool_)}
            return [Told(*each) for each in self._rows(*kept(envs.reset(options=mask)))]
        actions = actions_of_rows(envs.single_action_space, position)
        observations, rewards, terminated, truncated, infos = kept(envs.step(actions))
        finals = infos
        if self._mode is AutoresetMode.SAME_STEP and (terminated | truncated).all():
            finals = {key: infos.pop(key) for key in _FINAL if key in infos}
        rows = self._rows(observations, infos)
        if call == "r":
            assert not (terminated | truncated | (rewards != 0)).any()
            return [Told(*each) for each in rows]
        flags = [map(bool, each) for each in zip(terminated, truncated, strict=True)]
        if finals is not infos:
            self._begun = [Told(*each) for each in rows]
            ended = finals.get("final_info", {})
            rows = [(finals["final_obs"][row], row_of_infos(ended, row)) for row in ROWS]
        return [
            Told(*seen, float(reward), *ends)
            for seen, reward, ends in zip(rows, rewards, flags, strict=True)
        ]

    def _rows(self, observations: Any, infos: Any) -> list[tuple[Any, Any]]:
        seen = rows_of_observations(self._envs.single_observation_space, observations)
        return [(each, row_of_infos(infos, row)) for row, each in zip(ROWS, seen, strict=True)]


def play_by_row(address: str, habit: str, calls: Sequence[Call], **options: Any) -> list[Tale]:
    """Plays all rows at once, each with its own info, as the VecEnv of Stable-Baselines3 does."""
    settings = [{"habit": habit, "row": row} for row in ROWS]
    options = {"autoreset_mode": AutoresetMode.SAME_STEP, **options}
    try:
        envs = DictVectorEnv(address, len(ROWS), settings, **options)
    except Exception as error:
        return [[first_failure(error)] for _ in ROWS]
    with envs:
        opened = Opened(envs.action_space, envs.single_observation_space)
        tales: list[Tale] = [[opened] for _ in ROWS]
        begun: list[Event] | None = None
        for position, call in enumerate(calls):
            try:
                if call == "r" and begun is not None:
                    events, begun = begun, None
                else:
                    events, begun = _called(envs, call, position)
            except Exception as error:
                events, begun = rows_of_failure(error), None
            for tale, event in zip(tales, events, strict=True):
                tale.append(event)
        return tales


def _called(
    envs: DictVectorEnv, call: Call, position: int
) -> tuple[list[Event], list[Event] | None]:
    """Returns what the rows are told, and what began in the same step."""
    space = envs.single_observation_space
    firsts: list[dict[str, Any]] = [{} for _ in ROWS]
    if call == "R":
        seeds = [seed_of(row) for row in ROWS]
        seen = rows_of_observations(space, kept(envs.reset_each(seeds, dict(OPTIONS), firsts)))
        return [*map(Told, seen, kept(firsts))], None
    actions = actions_of_rows(envs.single_action_space, position)
    observations, rewards, dones, infos = kept(envs.step_each(actions, firsts))
    assert rewards.dtype == np.float32
    seen = rows_of_observations(space, observations)
    limits = [info.pop("TimeLimit.truncated") for info in infos]
    begun: list[Event] | None = None
    if dones.all():
        begun = [*map(Told, seen, kept(firsts))]
        seen = [info.pop("terminal_observation") for info in infos]
    if call == "r":
        return [*map(Told, seen, infos)], None
    flags = zip(map(bool, dones), limits, strict=True)
    return [
        Told(observation, info, float(reward), *ends)
        for observation, info, reward, ends in zip(seen, infos, rewards, flags, strict=True)
    ], begun
