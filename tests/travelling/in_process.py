"""What is expected: what an environment tells in this process, in the form of each way.

The functions that change a tale apply what `documented.py` quotes, and what Gymnasium's own vector
environments do.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dm_env_rpc_client.errors import SpecError
from tests.travelling.environments.habits import Habit
from tests.travelling.environments.informing import (
    COMPLEX,
    DATES,
    DATES_OF_PYTHON,
    KEPT_ALONE,
    MASKED,
    SETS,
    SUBCLASSES,
)
from tests.travelling.told import Call, Event, Failed, Lost, Opened, Tale, Told

ROWS = (0, 1)

OPTIONS: dict[str, Any] = {
    "level": 3,
    "names": ["a", "b"],
    **{
        f"{number} {name}": value
        for number, values in enumerate(
            (COMPLEX, DATES, DATES_OF_PYTHON, KEPT_ALONE, MASKED, SETS, SUBCLASSES)
        )
        for name, value in values.items()
    },
}
"""Those of each reset that somebody asks for."""

_LEVELS = 7
"""Of an info, as they travel."""


def seed_of(row: int) -> int:
    return 10 + row


def action_of(space: spaces.Space[Any], position: int, row: int) -> Any:
    """The action of a call: another one for each row and each call."""
    space.seed(1000 + 10 * position + row)
    return space.sample()


def described(error: BaseException) -> str:
    """Returns an error as a server tells of it."""
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name


def given_to_reset(row: int, takes: bool) -> dict[str, Any]:
    """What a reset is given that somebody asks for."""
    return {"seed": seed_of(row), "options": dict(OPTIONS)} if takes else {}


def alone(habit: Habit, row: int, is_adapted: bool = False) -> Tale:
    """Plays a Gymnasium environment in this process, and notes what it returns as it is.

    Args:
      habit: the environment.
      row: its row.
      is_adapted: whether it is one of dm_env, which takes no seeds and options.
    """
    try:
        env = habit.make(row)
    except SpecError as error:
        return [Failed("SpecError", str(error))]
    except (ValueError, TypeError) as error:
        return [Failed("INVALID_ARGUMENT", str(error))]
    except BaseException as error:
        return [Failed("INTERNAL", described(error))]
    tale: Tale = [Opened(env.action_space, env.observation_space)]
    for position, call in enumerate(habit.calls):
        if refused := habit.refused.get(position):
            _call(env, call, position, row, is_adapted)
            tale.append(Failed("INTERNAL", "", *refused))
        else:
            tale.append(_call(env, call, position, row, is_adapted))
    return tale


def _call(env: Any, call: Call, position: int, row: int, is_adapted: bool) -> Event:
    try:
        if call == "s":
            action = action_of(env.action_space, position, row)
            observation, reward, terminated, truncated, info = _copied(env.step(action))
            return Told(observation, info, reward, terminated, truncated)
        return Told(*_copied(env.reset(**given_to_reset(row, call == "R" and not is_adapted))))
    except BaseException as error:
        return Failed("INTERNAL", described(error))


def _copied(returned: Any) -> Any:
    if isinstance(returned, tuple):
        *others, info = returned
        if not isinstance(info, dict):
            return copy.deepcopy(returned)
        # Some values cannot be copied.
        parts = {key: _snapshot(value) for key, value in info.items()}
        return (*copy.deepcopy(others), parts)
    return returned, {}


def _snapshot(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except TypeError:
        return value


def sent(tale: Tale) -> Tale:
    """A tale as `Remote-v0` tells it."""
    if isinstance(tale[0], Failed):
        return tale
    opened: Any = tale[0]
    return [opened, *(_sent(opened.observations, event) for event in tale[1:])]


def _sent(space: spaces.Space[Any], event: Any) -> Event:
    if not isinstance(event, Told):
        return event  # type: ignore[no-any-return]
    observation, info = element(space, event.observation), arrived(event.info)
    if event.reward is None:
        return Told(observation, info)
    flags = bool(event.terminated), bool(event.truncated)
    return Told(observation, info, float(event.reward), *flags)


def by_place(tale: Tale) -> Tale:
    """A tale whose errors need not say what a value was, but where."""
    return [e._replace(details=()) if isinstance(e, Failed) else e for e in tale]


def element(space: Any, value: Any) -> Any:
    """An element of a space in the types of the space."""
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        return np.asarray(value).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return int(value)
    if isinstance(space, spaces.Dict):
        return {key: element(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(element, space.spaces, value))
    if isinstance(space, spaces.Sequence) and space.stack:
        return value
    if isinstance(space, spaces.Sequence):
        return tuple(element(space.feature_space, part) for part in value)
    return value


def arrived(value: Any, levels: int = _LEVELS) -> Any:
    """An info, or a part of it, as it arrives."""
    if isinstance(value, Mapping) and levels:
        return {arrived(key, levels - 1): arrived(part, levels - 1) for key, part in value.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind) and levels:
            try:
                return kind(arrived(part, levels - 1) for part in value)
            except TypeError:  # A part has no hash.
                return repr(value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        parts = np.empty_like(value)
        parts.flat[:] = [arrived(part, levels - 1) for part in value.flat]
        return parts
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "V":
        return value
    is_known = isinstance(value, bool | datetime.date | datetime.timedelta) or value is None
    if is_known and getattr(value, "tzinfo", None) is None:
        return value
    if isinstance(value, str):
        return "".join(value)
    bases: tuple[Any, ...] = bytes, int, float, complex
    for base in bases:
        if isinstance(value, base):
            return base(value)
    return repr(value)


# Vector environments.


def in_vectors(tales: Sequence[Tale], has_own_infos: bool = False) -> list[Tale]:
    """The tales of all rows, as vector environments of Gymnasium put them together.

    A row whose neighbour has failed in a call has been told nothing of that call.

    Args:
      tales: those of the rows alone.
      has_own_infos: whether the info of each row stays as it is.
    """
    if isinstance(tales[0][0], Failed):
        return list(tales)
    opened: Any = tales[0][0]
    rows = [_batched(opened)] * len(tales)
    told: list[Tale] = [[row] for row in rows]
    for events in zip(*(tale[1:] for tale in tales), strict=True):
        for tale, event in zip(
            told, at_once(opened.observations, events, has_own_infos), strict=True
        ):
            tale.append(event)
    return told


def _batched(opened: Opened) -> Opened:
    return Opened(batch_space(opened.actions, len(ROWS)), opened.observations)


def at_once(
    space: spaces.Space[Any], events: Sequence[Any], has_own_infos: bool = False
) -> list[Event]:
    """What all rows are told of one call."""
    events = list(events)
    infos: dict[str, Any] = {}
    own = gymnasium.vector.VectorEnv()
    own.num_envs = len(events)
    for row, event in enumerate(events):
        if isinstance(event, Told) and event.info and not has_own_infos:
            try:
                infos = own._add_info(infos, event.info, row)
            except Exception:
                events[row] = Failed("SpecError", "its info cannot be stacked with the others")
    failures = [isinstance(event, Failed) for event in events]
    if any(failures):
        return [event if isinstance(event, Failed) else Lost() for event in events]
    sampled = [_sampled(space, event.observation) for event in events]
    empty: Any = create_empty_array(space, len(events))
    observations = rows_of_observations(space, concatenate(space, sampled, empty))
    told: list[Event] = []
    for row, (event, observation) in enumerate(zip(events, observations, strict=True)):
        info = event.info if has_own_infos else row_of_infos(infos, row)
        if event.reward is None:
            told.append(Told(observation, info))
        else:
            told.append(Told(observation, info, float(event.reward), *event[3:]))
    return told


def _sampled(space: Any, value: Any) -> Any:
    """An element with NumPy's integers, as `sample` returns them."""
    if isinstance(space, spaces.Discrete):
        return np.dtype(space.dtype).type(value)
    if isinstance(space, spaces.Dict):
        return {key: _sampled(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_sampled, space.spaces, value))
    return value


def rows_of_observations(space: spaces.Space[Any], observations: Any) -> list[Any]:
    """Returns the observation of each row."""
    return [_plain(each) for each in iterate(batch_space(space, len(ROWS)), observations)]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(_plain, value))
    return value


def row_of_infos(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Returns the info of a row in those of all: the keys whose mask has the row."""
    found = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask[row]:
            is_nested = isinstance(values, Mapping)
            found[key] = row_of_infos(values, row) if is_nested else values[row]
    return found


def by_row(tales: Sequence[Tale], calls: Sequence[Call]) -> list[Tale]:
    """What Stable-Baselines3 tells of rows: SAME_STEP, infos as they are, rewards in float32.

    There is one flag, beside that of a time limit.
    """
    told = in_same_step(in_vectors(tales, has_own_infos=True), tales, calls)
    return [[_of_one_flag(event) for event in tale] for tale in told]


def _of_one_flag(event: Event) -> Event:
    if not isinstance(event, Told) or event.reward is None:
        return event
    is_over = bool(event.terminated or event.truncated)
    is_truncated = bool(event.truncated and not event.terminated)
    return event._replace(
        reward=float(np.float32(event.reward)), terminated=is_over, truncated=is_truncated
    )


def in_same_step(tales: Sequence[Tale], alone: Sequence[Tale], calls: Sequence[Call]) -> list[Tale]:
    """Tales in which the step that ends an episode begins the next.

    The last observation is that of the environment itself, and not one of a vector environment.

    Args:
      tales: as vector environments tell them.
      alone: those of the rows alone.
      calls: what was called.
    """
    changed = [list(tale) for tale in tales]
    for tale, own in zip(changed, alone, strict=True):
        for place in range(2, len(tale)):
            event, last = tale[place - 1], own[place - 1]
            if calls[place - 1] == "r" and isinstance(event, Told) and isinstance(last, Told):
                tale[place - 1] = event._replace(observation=last.observation)
    return changed


_OF_ARRAYS = ("returned a reward that is not a number", "returned rewards that are")
"""What is said of a reward, and of an array of them."""


def whole(tales: Sequence[Tale]) -> list[Tale]:
    """Tales of a vector environment, which raises what one of its rows raises."""
    told: list[Tale] = [[] for _ in tales]
    for events in zip(*tales, strict=True):
        failure = next((event for event in events if isinstance(event, Failed)), None)
        if failure is not None and failure.code == "SpecError":
            failure = Failed("INTERNAL")  # Gymnasium's own error about infos.
        if failure is not None:
            parts = (each.replace(*_OF_ARRAYS) for each in failure.parts)
            failure = failure._replace(parts=tuple(parts))
        for tale, event in zip(told, events, strict=True):
            tale.append(event if failure is None else failure)
    return told
