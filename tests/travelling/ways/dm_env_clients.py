"""Clients of dm_env."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client import BatchedEnvironment, make, make_async
from dm_env_rpc_client.protocol.batches import ROW_ERRORS, STEP_TYPE, row_errors
from dm_env_rpc_client.recording import read
from tests.travelling.in_process import ROWS, seed_of
from tests.travelling.timed_in_process import action_by_name, facts, nested, written
from tests.travelling.told import Call, Event, Failed, Lost, Opened, Tale, Timed, kept
from tests.travelling.ways.gymnasium_clients import failed, first_failure, rows_of_failure

_FIRST = int(dm_env.StepType.FIRST)


def play_make(
    address: str, habit: str, calls: Sequence[Call], *, seeds: bool = False, **options: Any
) -> list[Tale]:
    """Plays the last row alone, by `make`."""
    row = ROWS[-1]
    try:
        env = make(address, {"habit": habit, "row": row}, **options)
    except Exception as error:
        return [[failed(error)]]
    with env:
        tale: Tale = [Opened(facts(env.action_spec()), facts(env.observation_spec()))]
        for position, call in enumerate(calls):
            try:
                if call == "R":
                    timestep = env.reset({"seed": seed_of(row)} if seeds else {})
                else:  # The step after the end of a sequence begins the next.
                    timestep = env.step(_nested_action(env, position, row))
                tale.append(_timed(kept(timestep)))
            except Exception as error:
                tale.append(failed(error))
    return [tale]


def play_async(address: str, habit: str, calls: Sequence[Call], seeds: bool = False) -> list[Tale]:
    """Plays the last row alone, by `make_async`."""
    return [asyncio.run(_play_async(address, habit, calls, seeds))]


async def _play_async(address: str, habit: str, calls: Sequence[Call], seeds: bool) -> Tale:
    row = ROWS[-1]
    try:
        env = await make_async(address, {"habit": habit, "row": row})
    except Exception as error:
        return [failed(error)]
    async with env:
        tale: Tale = [Opened(facts(env.action_spec()), facts(env.observation_spec()))]
        for position, call in enumerate(calls):
            try:
                if call == "R":
                    timestep = await env.reset({"seed": seed_of(row)} if seeds else {})
                else:
                    timestep = await env.step(_nested_action(env, position, row))
                tale.append(_timed(kept(timestep)))
            except Exception as error:
                tale.append(failed(error))
    return tale


def _nested_action(env: Any, position: int, row: int) -> dict[str, Any]:
    return nested(action_by_name(env.action_spec(), position, row))


def _timed(timestep: dm_env.TimeStep) -> Timed:
    step_type, reward, discount, observation = timestep
    paid, left = (None if each is None else written(each) for each in (reward, discount))
    return Timed(int(step_type), paid, left, _written(observation))


def _written(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: _written(part) for key, part in observation.items()}
    return written(observation)


# Rows.


def play_make_of_batch(
    address: str, settings: Mapping[str, Any], calls: Sequence[Call], *, seeds: bool = False,
    **options: Any,
) -> list[Tale]:  # fmt: skip
    """Plays all rows of one world, by `make`."""
    try:
        env = make(address, {**settings, "num_envs": len(ROWS)}, **options)
    except Exception as error:
        return [[failed(error)] for _ in ROWS]
    own = {"rows.seed": [seed_of(row) for row in ROWS]} if seeds else {}
    with env:
        return _play_rows(env, calls, own)


def play_batched(
    address: str, habit: str, calls: Sequence[Call], *, seeds: bool = False, **options: Any
) -> list[Tale]:
    """Plays all rows, by `BatchedEnvironment`."""
    try:
        env = BatchedEnvironment(
            address, len(ROWS), lambda row: {"habit": habit, "row": row}, **options
        )
    except Exception as error:
        return [[first_failure(error)] for _ in ROWS]
    own = [{"seed": seed_of(row)} for row in ROWS] if seeds else {}
    with env:
        return _play_rows(env, calls, own)


def _play_rows(env: Any, calls: Sequence[Call], settings: Any) -> list[Tale]:
    observations = facts(_row_spec(env.observation_spec()))
    opened = Opened(facts(_row_spec(env.action_spec())), observations)
    tales: list[Tale] = [[opened] for _ in ROWS]
    for position, call in enumerate(calls):
        try:
            if call == "R":
                timestep = env.reset(settings) if settings else env.reset()
            else:
                timestep = env.step(_actions_of_rows(env, position))
            events = _rows_of(kept(timestep))
        except Exception as error:
            events = rows_of_failure(error)
        for tale, event in zip(tales, events, strict=True):
            tale.append(event)
    return tales


def _actions_of_rows(env: Any, position: int) -> Any:
    spec = _row_spec(env.action_spec())
    rows = [action_by_name(spec, position, row) for row in ROWS]
    return nested({name: np.stack([each[name] for each in rows]) for name in rows[0]})


def _row_spec(spec: Any) -> Any:
    """The specs of one row: without the first dimension, and what batches add."""
    if isinstance(spec, Mapping):
        parts = {key: _row_spec(part) for key, part in spec.items()}
        return {key: part for key, part in parts.items() if key not in (STEP_TYPE, ROW_ERRORS)}
    changed: dict[str, Any] = {"shape": spec.shape[1:]}
    for side in ("minimum", "maximum"):
        bound = getattr(spec, side, None)
        if bound is not None and spec.shape and np.ndim(bound) == len(spec.shape):
            assert (bound == bound[:1]).all()
            changed[side] = bound[0]
    return spec.replace(**changed) if spec.shape else spec


def _rows_of(timestep: dm_env.TimeStep) -> list[Event]:
    """What each row is told."""
    observation = dict(timestep.observation)
    errors = row_errors(observation.pop(ROW_ERRORS, ""), len(ROWS))
    step_types = np.asarray(observation.pop(STEP_TYPE, timestep.step_type))
    if errors:
        return [Failed("INTERNAL", errors[row]) if row in errors else Lost() for row in ROWS]
    told: list[Event] = []
    for row in ROWS:
        kind = int(step_types[row])
        reward, discount = (
            None if each is None else written(each)[row]
            for each in (timestep.reward, timestep.discount)
        )
        if kind == _FIRST:
            assert reward is None or not np.any(reward), reward
            assert discount is None or np.all(discount == 1), discount
            reward = discount = None
        told.append(Timed(kind, _array(reward), _array(discount), _row_of(observation, row)))
    return told


def _array(value: Any) -> Any:
    return None if value is None else written(value)


def _row_of(observation: Any, row: int) -> Any:
    if isinstance(observation, Mapping):
        return {key: _row_of(part, row) for key, part in observation.items()}
    return written(written(observation)[row])


# Recordings.


def read_episodes(path: Path) -> list[Event]:
    """What the episodes of a recording say."""
    return [
        _timed(timestep._replace(observation=nested(timestep.observation)))
        for episode in read(path).episodes
        for timestep in episode.flat_timesteps
    ]
