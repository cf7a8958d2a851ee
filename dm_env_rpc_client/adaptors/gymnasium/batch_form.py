"""Conversion of the inputs and outputs of batched simulators to a common form with NumPy arrays.

The type of a batch's first observation determines its array library. A batch's `step` can return
four values instead of five, its `reset` can return an observation without infos, and its spaces
can describe all rows together instead of one row.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium import space_json
from dm_env_rpc_client.adaptors.gymnasium.returns import begun, inner
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.errors import RequestError, environment_error
from dm_env_rpc_client.system.foreign_environments import and_wrapped, packages_of
from dm_env_rpc_client.tensors import array_kinds
from dm_env_rpc_client.tensors.array_kinds import NUMPY, ArrayKind

_RETURNED = ("observation", "reward", "terminated", "truncated", "info")

BEGUN = ("observation", "info")

_TIME_OUTS = ("time_outs", "TimeLimit.truncated", "truncation")
"""The info keys with which rsl_rl, Gym and Brax mark truncations if steps return four values."""


def kind_for(env: Any, observation: Any, arrays: str) -> ArrayKind:
    """Return the kind of array that an environment accepts as actions.

    Args:
      env: the environment.
      observation: the first observation of the batch.
      arrays: as for `serve`.

    Raises:
      RuntimeError: the library is not installed.
    """
    found = array_kinds.kind_of(observation)
    if arrays in (array_kinds.AUTO, found.library):
        return found
    device = None if arrays == NUMPY.library else getattr(inner(env), "device", None)
    try:
        return array_kinds.named(arrays, device)
    except SpecError as error:
        raise environment_error(error, "option") from error


def given(value: Any, kind: ArrayKind, what: str) -> Any:
    """Convert a client's value to an environment's kind of array, or raise RequestError."""
    try:
        return array_kinds.from_numpy(value, kind, what)
    except SpecError as error:
        raise RequestError.invalid(str(error)) from error


def taken(returned: Any, names: Sequence[str] = _RETURNED) -> Any:
    """Convert an environment's results to NumPy arrays, or raise RuntimeError on failure."""
    # Any other value is converted as a whole; the caller reports it as an error.
    is_tuple = isinstance(returned, tuple) and len(returned) == len(names)
    named = dict(zip(names, returned, strict=True)) if is_tuple else returned
    try:
        found = array_kinds.to_numpy(named, "what it returned,")
    except SpecError as error:
        raise environment_error(error, "space") from error
    return tuple(found.values()) if is_tuple else found


class NumpyEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that accepts and returns NumPy arrays, whatever arrays the environment uses."""

    def __init__(self, env: Any, kind: ArrayKind):
        super().__init__(env)
        self._kind = kind

    def reset(self, **arguments: Any) -> Any:
        return taken(self.env.reset(**given(arguments, self._kind, "setting")), BEGUN)

    def step(self, action: Any) -> Any:
        return taken(self.env.step(given(action, self._kind, "action")))


class BatchForm:
    """A wrapper that steps a batch and converts its results to a common form with NumPy arrays.

    Args:
      env: the batch.
      arrays: as for `serve`.

    Attributes:
      kind: the kind of arrays that the batch accepts; None before the first reset.
      has_four: whether the steps of the batch return four values; None before the first step.
      seeds: whether the batch accepts seeds.
      ignores_masks: whether the batch ignores reset masks and always resets all rows.
    """

    def __init__(self, env: Any, arrays: str):
        self._env = env
        self._arrays = arrays
        self.kind: ArrayKind | None = None
        self.has_four: bool | None = None
        parameters = inspect.signature(env.reset).parameters
        kinds = {each.kind for each in parameters.values()}
        self._takes_seed = "seed" in parameters or inspect.Parameter.VAR_KEYWORD in kinds
        self.seeds = self._takes_seed or hasattr(env, "seed")
        packages = packages_of(env)
        self._takes_indices = "mani_skill" in packages
        self.ignores_masks = "vmas" in packages

    def __str__(self) -> str:
        """Return a description of the batch's arrays and step results, as far as known."""
        values = "" if self.has_four is None else f", {4 if self.has_four else 5} values"
        own = "known after the first reset" if self.kind is None else self.kind
        return f"{type(inner(self._env)).__name__}: arrays {own}{values}"

    def reset(self, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        """Reset with `arguments` as in Gymnasium, and return the observation and the infos."""
        own = dict(arguments)
        if "seed" in own and not self._takes_seed:
            self._env.seed(own.pop("seed"))
        if own.get("options") is not None:
            options = dict(own["options"])
            if self._takes_indices and batches.RESET_MASK in options:
                options["env_idx"] = np.flatnonzero(options.pop(batches.RESET_MASK))
            own["options"] = given(options, self.kind or NUMPY, "setting 'options'")
        returned = self._env.reset(**own)
        if isinstance(returned, Mapping) or hasattr(returned, "shape"):
            returned = returned, {}
        observation, info = begun(self._env, returned)
        if self.kind is None:
            self.kind = kind_for(self._env, observation, self._arrays)
        begin: tuple[Any, Any] = taken((observation, info or {}), BEGUN)
        return begin

    def step(self, actions: Any, wants_infos: bool) -> Any:
        """Take a step and return its five values; infos are empty unless `wants_infos` is True."""
        if self.kind is not None and self.kind is not NUMPY:
            actions = given(actions, self.kind, "action")
        returned = self._env.step(actions)
        is_sequence = isinstance(returned, tuple | list)
        self.has_four = is_sequence and len(returned) == 4 and isinstance(returned[3], Mapping)
        if self.has_four:
            *first, info = returned
            # Without a mark, the ends are terminations.
            outs = (info[name] for name in _TIME_OUTS if name in info)
            returned = (*first, next(outs, np.zeros(len(first[2]), np.bool_)), info)
        observation, reward, terminated, truncated, info = returned
        return taken((observation, reward, terminated, truncated, info if wants_infos else {}))


def single_space(env: Any, name: str) -> Any:
    """Return the space of one row of a batch.

    Args:
      env: the batch.
      name: "action_space" or "observation_space".

    Raises:
      SpecError: the batch does not declare the space.
    """
    space = getattr(env, name, None)  # Some declare only the space of one row.
    for owner in and_wrapped(env):
        if getattr(owner, name, None) != space:
            break  # A wrapper changes it.
        own = getattr(owner, f"single_{name}", None)
        if own is not None:
            return own
    return _of_row(space_json.of_gymnasium(space), name)


def _of_row(space: Any, name: str) -> Any:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _of_row(part, name) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(_of_row(part, name) for part in space.spaces)
    if isinstance(space, spaces.Box) and _is_same(space.low) and _is_same(space.high):
        low, high = space.low[0], space.high[0]
        return spaces.Box(low, high, space.shape[1:], space.dtype)
    if isinstance(space, spaces.MultiDiscrete) and _is_same(space.nvec) and _is_same(space.start):
        nvec, start = space.nvec[0], space.start[0]
        if space.nvec.ndim == 1:
            return spaces.Discrete(int(nvec), start=int(start))
        return spaces.MultiDiscrete(nvec, space.dtype, start=start)
    raise SpecError(
        f"{space} differs between rows; set the environment's single_{name} to the space of a row"
    )


def _is_same(rows: Any) -> bool:
    return bool((rows == rows[:1]).all())
