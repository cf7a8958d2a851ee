"""What clients of dm_env are expected to be told: what an environment tells in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnvironment
from tests.travelling.environments.habits import Habit
from tests.travelling.in_process import ROWS, described, seed_of
from tests.travelling.told import Event, Failed, Lost, Opened, Tale, Timed

_FIRST, _, _LAST = map(int, dm_env.StepType)


def timed_alone(habit: Habit, row: int) -> Tale:
    """Plays an environment in this process; one of Gymnasium as dm_env, by the own adaptor."""
    try:
        env = habit.make(row)
    except (ValueError, TypeError) as error:
        return [Failed("INVALID_ARGUMENT", str(error))]
    except Exception as error:
        return [Failed("INTERNAL", described(error))]
    is_gymnasium = isinstance(env, gymnasium.Env)
    if is_gymnasium:
        env = GymnasiumEnvironment(env)
    tale: Tale = [Opened(facts(env.action_spec(), "action"), facts(env.observation_spec()))]
    for position, call in enumerate(habit.calls):
        if is_gymnasium and call == "R":
            env.configure({"seed": seed_of(row)})
        event = _called(env, call, position, row)
        refused = habit.refused.get(position)
        tale.append(event if refused is None else Failed("INTERNAL", "", *refused))
    return tale


def _called(env: Any, call: str, position: int, row: int) -> Event:
    try:
        if call == "s":
            action = _action(env.action_spec(), position, row)
            return timed_of(env.step(action), env, is_first=False)
        return timed_of(env.reset(), env, is_first=True)
    except BaseException as error:
        return Failed("INTERNAL", described(error))


def timed_of(timestep: Any, env: Any, is_first: bool) -> Event:
    """A TimeStep of an environment in this process, in the dtypes of its specs."""
    try:
        kind = _FIRST if is_first else int(timestep.step_type)
        observed = _values(env.observation_spec(), timestep.observation)
        reward = discount = None
        if kind != _FIRST:
            reward = _number(timestep.reward, env.reward_spec(), 0.0)
            otherwise = 0.0 if kind == _LAST else 1.0
            discount = _number(timestep.discount, env.discount_spec(), otherwise)
        return Timed(kind, reward, discount, nested(observed))
    except Exception as error:  # It is one that is refused.
        return Failed("", f"not a TimeStep that conforms: {error!r}")


class Named(dm_env.Environment):
    """An environment as clients see it: its values by name, in the dtypes of the protocol."""

    def __init__(self, env: Any):
        self._env = env

    def reset(self) -> dm_env.TimeStep:
        timestep = self._env.reset()
        return dm_env.restart(self._observed(timestep))

    def step(self, action: Any) -> dm_env.TimeStep:
        timestep = self._env.step(_as_nested(self._env.action_spec(), action))
        kind = dm_env.StepType(int(timestep.step_type))
        otherwise = 0.0 if kind is dm_env.StepType.LAST else 1.0
        reward = _number(timestep.reward, self.reward_spec(), 0.0)
        discount = otherwise if timestep.discount is None else timestep.discount
        return dm_env.TimeStep(kind, reward, discount, self._observed(timestep))

    def action_spec(self) -> Any:
        return _named(self._env.action_spec(), "action")

    def observation_spec(self) -> Any:
        return _named(self._env.observation_spec(), "observation")

    def reward_spec(self) -> Any:
        spec: specs.Array = self._env.reward_spec()
        return spec.replace(name="reward")

    def discount_spec(self) -> Any:
        return self._env.discount_spec()

    def _observed(self, timestep: Any) -> Any:
        return nested(_values(self._env.observation_spec(), timestep.observation))


def _named(structure: Any, single: str) -> Any:
    flat = {}
    for name, spec, _ in _leaves(structure, single):
        wider = _WIDER.get(spec.dtype.name)
        flat[name] = spec if wider is None else spec.replace(dtype=wider)
    return nested(flat)


def _values(structure: Any, value: Any) -> dict[str, Any]:
    return {
        name: written(_found(value, path), _WIDER.get(spec.dtype.name, spec.dtype))
        for name, spec, path in _leaves(structure, "observation")
    }


def _as_nested(structure: Any, action: Any) -> Any:
    """An action by name in the structure of its spec."""
    flat = {}
    for name, spec, _ in _leaves(structure, "action"):
        value = action
        for level in name.split("."):
            value = value[level]
        flat[name] = np.asarray(value, spec.dtype)[()]
    leaves = iter(flat.values())
    return _filled(structure, lambda spec: next(leaves))


_WIDER: Mapping[str, np.dtype[Any]] = {
    "int16": np.dtype(np.int32),
    "uint16": np.dtype(np.uint32),
    "float16": np.dtype(np.float32),
}
"""The dtypes that the protocol does not have, and those that stand for them."""


def _number(value: Any, spec: specs.Array, otherwise: float) -> np.ndarray[Any, Any]:
    given = otherwise if value is None else value
    return np.broadcast_to(np.asarray(given), spec.shape).astype(spec.dtype)


def written(value: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """A value as an array, and texts as objects: clients may get scalars or arrays of them."""
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return array.astype(object)
    return array if dtype is None else array.astype(dtype)


def facts(structure: Any, single: str = "observation") -> dict[str, Any]:
    """What specs say, nested by their names, in their order."""
    return nested({name: _facts(spec) for name, spec, _ in _leaves(structure, single)})


def _facts(spec: specs.Array) -> Any:
    if isinstance(spec, specs.StringArray):
        return (spec.shape, "text")
    bounds: list[Any] = [getattr(spec, side, None) for side in ("minimum", "maximum")]
    if isinstance(spec, specs.BoundedArray) and (
        spec.dtype == np.bool_ or not np.isfinite(bounds).any()
    ):
        bounds = [None, None]
    # One bound for all is that of each; how clients get it, other tests see.
    shape = () if min(spec.shape, default=0) < 0 else spec.shape
    shaped = (None if bound is None else np.broadcast_to(bound, shape) for bound in bounds)
    told = [None if bound is None else bound.tolist() for bound in shaped]
    dtype = _WIDER.get(spec.dtype.name, spec.dtype)
    return (spec.shape, dtype.name, *told)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Values by flat name as nested dictionaries."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        branch = found
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = value
    return found


_Path = tuple[Any, ...]


def _leaves(structure: Any, single: str, path: _Path = ()) -> Iterator[tuple[str, Any, _Path]]:
    """Yields the flat name of each spec of a structure, the spec, and the keys that lead to it."""
    parts = _parts(structure)
    if parts is None:
        yield ".".join(map(str, path)) if path else single, structure, path
    else:
        for key, part in parts.items():
            yield from _leaves(part, single, (*path, key))


def _parts(structure: Any) -> Mapping[Any, Any] | None:
    if isinstance(structure, Mapping):
        return structure
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return dict(zip(structure._fields, structure, strict=True))
    if dataclasses.is_dataclass(structure):
        return {each.name: getattr(structure, each.name) for each in dataclasses.fields(structure)}
    if isinstance(structure, list | tuple):
        return dict(enumerate(structure))
    return None


def _found(value: Any, path: _Path) -> Any:
    for key in path:
        parts = _parts(value)
        assert parts is not None
        value = parts[key]
    return value


def _action(structure: Any, position: int, row: int) -> Any:
    """The action of a call, in the structure of its spec."""
    return _filled(structure, lambda spec: _value(spec, position + row))


def _filled(structure: Any, value: Callable[[Any], Any]) -> Any:
    """A structure with a value in the place of each spec."""
    kind: Any = type(structure)
    if isinstance(structure, Mapping):
        return kind((key, _filled(part, value)) for key, part in structure.items())
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return kind(*(_filled(part, value) for part in structure))
    if isinstance(structure, list | tuple):
        return kind(_filled(part, value) for part in structure)
    return value(structure)


def _value(spec: specs.Array, number: int) -> Any:
    if isinstance(spec, specs.StringArray):
        return np.full(spec.shape, "x" * (number % 3), object)[()]
    low = np.asarray(getattr(spec, "minimum", 0))
    high = np.asarray(getattr(spec, "maximum", 10))
    if spec.dtype.kind == "f":
        low, high = np.maximum(low, -100.0), np.minimum(high, 100.0)
        value = low + (high - low) * (number % 4) / 4
    else:
        value = low + number % (np.minimum(high - low, 10) + 1)
    return np.broadcast_to(value, spec.shape).astype(spec.dtype)[()]


def action_by_name(structure: Any, position: int, row: int) -> dict[str, Any]:
    """The same action by flat name, as clients send it."""
    return {name: _value(spec, position + row) for name, spec, _ in _leaves(structure, "action")}


def timed_in_rows(tales: Sequence[Tale]) -> list[Tale]:
    """The tales of rows that step at once: a row whose neighbour fails is told nothing."""
    told: list[Tale] = [[] for _ in ROWS]
    for events in zip(*tales, strict=True):
        has_failed = any(isinstance(event, Failed) for event in events)
        for tale, event in zip(told, events, strict=True):
            tale.append(Lost() if has_failed and not isinstance(event, Failed) else event)
    return told
