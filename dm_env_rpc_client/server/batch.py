"""Several environments of one factory as one environment, whose arrays have a row for each.

What its names mean for a client is written down in the guide "Serve a batch".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt
import tree
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.offered_properties import Properties
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.server.worlds.flat_specs import FlatSpecs
from dm_env_rpc_client.tensors import casting, nesting
from dm_env_rpc_client.tensors.batch_specs import VARIABLE, batch_spec
from dm_env_rpc_client.tensors.limits import DEFAULT, shortened

__all__ = ["MAX_ROWS", "OF_BATCHES", "Batch", "check_num_envs", "settings_of_rows"]

MAX_ROWS = 16_384
"""The most environments of one batch: each takes memory and a place in every message."""

MAX_BYTES = DEFAULT.message_bytes
"""What the observations of all rows may take: what a client takes in one message by default."""

_ERROR_BYTES = 4096
"""The size of the text of one row that has failed; the rest is cut off."""

OF_BATCHES = Properties.of_getters({batches.MAX_NUM_ENVS: lambda: MAX_ROWS})
"""What every client of a server may read, so that it knows that there are batches."""

_log = logging.getLogger("dm_env_rpc_client.server")

Settings = Mapping[str, Any]


class Batch(dm_env.Environment):
    """Steps environments one after the other, and has their results in arrays [N, ...].

    The step after a row's LAST one begins its next sequence and ignores its action; a FIRST row
    has reward 0 and discount 1. What an environment raises is the text of its row in the
    observation `row_errors`: that row stays as it was, and the others have taken their step.

    Args:
      make: makes the environment of a row from its settings, by flat name.
      settings: those of the world, by flat name, with `num_envs`.

    Attributes:
      reset_settings: None: it takes all settings of a Reset itself.

    Raises:
      RequestError: the number of rows, or settings of rows, are wrong.
      SpecError: the environments have different specs, or ones of which no rows can be made.
    """

    reset_settings = None

    def __init__(self, make: Callable[[Settings], dm_env.Environment], settings: Settings):
        self._make = make
        self.num_envs = check_num_envs(settings[batches.NUM_ENVS])
        self._settings = settings_of_rows(
            {name: value for name, value in settings.items() if name != batches.NUM_ENVS},
            self.num_envs,
        )
        self._environments: list[dm_env.Environment] = []
        try:
            for index, own in enumerate(self._settings):
                self._environments.append(make(own))
                if index == 0:
                    self._rows = _Rows(self._environments[0], self.num_envs)
                else:
                    self._rows.check(self._environments[index], index)
        except BaseException:
            self.close()
            raise
        self._is_running = np.zeros(self.num_envs, np.bool_)
        self._has_begun = np.zeros(self.num_envs, np.bool_)
        # The rows in which the next reset begins a sequence.
        self._mask = np.ones(self.num_envs, np.bool_)

    @property
    def properties(self) -> Mapping[str, Callable[[], Any]]:
        """What a server offers as properties: functions of their values, by key."""
        return {
            batches.WORLD_NUM_ENVS: lambda: self.num_envs,
            batches.WORLD_AUTORESET_MODE: lambda: "NEXT_STEP",
        }

    @property
    def default_actions(self) -> Mapping[str, Any]:
        """Values, by flat name, for actions that a step leaves out, as the rows have them."""
        return getattr(self._environments[0], "default_actions", {})

    def configure(self, settings: Settings) -> None:
        """Applies settings of a Reset to the rows in which it begins a sequence.

        Args:
          settings: `reset_mask`, bool [N], the rows; `rows`, arrays [N, ...] with a value for each;
            all others are for all of these rows. An environment that takes them itself (see
            `TakesSettings`) gets them; the others are made anew.

        Raises:
          ValueError: the mask, or a setting, is invalid.
        """
        flat = nesting.flatten_dict(settings, nesting.SEPARATOR, strict=False)
        mask = self._checked_mask(flat.pop(batches.RESET_MASK, None))
        try:
            of_rows = settings_of_rows(flat, self.num_envs)
        except RequestError as error:
            raise ValueError(str(error)) from error
        made: dict[int, dm_env.Environment] = {}
        # Those whose specs may be others now.
        changed: dict[int, dm_env.Environment] = {}
        kept: dict[int, dict[str, Any]] = {}
        try:
            for index in np.flatnonzero(mask).tolist():
                environment, own = self._environments[index], of_rows[index]
                names = getattr(environment, "reset_settings", ())
                own_names = [n for n in own if n.partition(nesting.SEPARATOR)[0] in names]
                remaining = {n: value for n, value in own.items() if n not in own_names}
                if remaining:
                    kept[index] = {**self._settings[index], **remaining}
                    environment = made[index] = changed[index] = self._make(kept[index])
                if own_names:
                    changed[index] = environment
                    nested = {name: own[name] for name in own_names}
                    environment.configure(nesting.unflatten_dict(nested, nesting.SEPARATOR))
            rows = self._rows_after(changed)
        except BaseException:
            for environment in made.values():
                environment.close()
            raise
        for index, environment in made.items():
            self._environments[index].close()
            self._environments[index] = environment
            self._settings[index] = kept[index]
        if rows is not self._rows:
            self._rows = rows
            self._has_begun[:] = False
        self._mask = mask

    def reset(self) -> dm_env.TimeStep:
        """Begins a sequence in all rows, or in those that the last `configure` named.

        Rows in which it begins none are as they were.
        """
        mask, self._mask = self._mask, np.ones(self.num_envs, np.bool_)
        # A row that has never begun has nothing to show.
        mask = mask | ~self._has_begun
        failures: dict[int, str] = {}
        for index in np.flatnonzero(mask).tolist():
            self._begin(index, failures)
        return self._rows.timestep(dm_env.StepType.FIRST, failures)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Steps every row, or begins a sequence where none is running.

        Args:
          action: arrays [N, ...] in the structure of `action_spec`.
        """
        rows = self._rows
        actions = rows.actions(action)
        failures: dict[int, str] = {}
        for index, environment in enumerate(self._environments):
            if not self._is_running[index]:
                self._begin(index, failures)
                continue
            try:
                timestep = environment.step(rows.action(actions, index))
                rows.put(index, timestep)
            except Exception as error:
                failures[index] = _failed(index, error)
            else:
                self._is_running[index] = not timestep.last()
        return rows.timestep(dm_env.StepType.MID, failures)

    def action_spec(self) -> Any:
        """Returns the specs of the actions, [N, ...] each."""
        return self._rows.action_spec

    def observation_spec(self) -> Any:
        """Returns the specs of the observations, [N, ...] each, with those of the rows."""
        return self._rows.observation_spec

    def reward_spec(self) -> Any:
        """Returns the spec of the reward, [N, ...]."""
        return self._rows.reward_spec

    def discount_spec(self) -> Any:
        """Returns the spec of the discount, [N, ...]."""
        return self._rows.discount_spec

    def close(self) -> None:
        """Closes every environment; raises the first error after all have been closed."""
        environments, self._environments = self._environments, []
        failure: Exception | None = None
        for environment in environments:
            try:
                environment.close()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _begin(self, index: int, failures: dict[int, str]) -> None:
        try:
            timestep = self._environments[index].reset()
            self._rows.put(index, timestep)
        except Exception as error:
            failures[index] = _failed(index, error)
        else:
            self._is_running[index] = not timestep.last()
            self._has_begun[index] = True

    def _checked_mask(self, mask: Any) -> npt.NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        array = np.asarray(mask)
        if array.dtype != np.bool_ or array.shape != (self.num_envs,) or not array.any():
            raise ValueError(
                f"setting {batches.RESET_MASK!r}: expected bool [{self.num_envs}] with at least "
                f"one True, got {array.dtype} {list(array.shape)}"
            )
        return array

    def _rows_after(self, changed: Mapping[int, dm_env.Environment]) -> _Rows:
        """Returns rows of the specs that are in force now.

        Args:
          changed: the environments whose specs may be others now, by row.

        Raises:
          SpecError: not all rows have the same specs.
        """
        rows = self._rows
        if len(changed) == self.num_envs and not rows.is_of(changed[0]):
            rows = _Rows(changed[0], self.num_envs)
        for index, environment in changed.items():
            rows.check(environment, index)
        return rows


class _Rows:
    """The arrays of a batch, and what puts a TimeStep of one environment into its row.

    Args:
      environment: has the specs of all rows.
      count: the number of rows.
    """

    def __init__(self, environment: dm_env.Environment, count: int):
        self._specs = _specs_of(environment)
        self._count = count
        _check_size(self._specs, count)
        self._single = FlatSpecs.of(environment, getattr(environment, "default_actions", {}))
        action, observation, reward, discount = self._specs
        self.action_spec = _batched(action, count)
        self._observation_spec = _batched(observation, count)
        self.reward_spec = _batched(reward, count)
        self.discount_spec = _batched(discount, count)
        self._names = list(self._single.observation_names)
        # In the order of the names; written in place, so that the structures are made once.
        self._observation, self._reward, self._discount = (
            _arrays(spec) for spec in (self._observation_spec, self.reward_spec, self.discount_spec)
        )
        self._sends_discount = self._single.sends_discount
        sent = [self._observation, self._reward, *([self._discount] * self._sends_discount)]
        leaves = [leaf for structure in sent for leaf in _leaves(structure)]
        self._arrays = dict(zip(self._names, leaves, strict=True))
        if not self._sends_discount:
            self._discount[:] = 1.0
        self._step_type = np.zeros(count, np.uint8)
        self.observation_spec = {
            **self._named(self._observation_spec),
            batches.STEP_TYPE: specs.BoundedArray((count,), np.uint8, 0, 2, batches.STEP_TYPE),
            batches.ROW_ERRORS: specs.StringArray((), name=batches.ROW_ERRORS),
        }

    def is_of(self, environment: dm_env.Environment) -> bool:
        """Whether an environment has the specs of these rows."""
        return _equal(self._specs, _specs_of(environment))

    def check(self, environment: dm_env.Environment, index: int) -> None:
        """Raises SpecError if the environment of row `index` has other specs than that of row 0."""
        kinds = ("action_spec", "observation_spec", "reward_spec", "discount_spec")
        for kind, own, other in zip(kinds, self._specs, _specs_of(environment), strict=True):
            if not _equal(own, other):
                raise SpecError(
                    f"row {index} of the batch has another {kind}() than row 0: {other} instead of "
                    f"{own}; the environments of one batch have the same"
                )

    def actions(self, action: Any) -> list[Any]:
        """Returns the arrays [N, ...] of actions, as tree flattens them.

        A default action is the same for all rows, and has no rows itself.
        """
        if self.action_spec is None:
            return []
        given = zip(
            tree.flatten_up_to(self.action_spec, action), _leaves(self.action_spec), strict=True
        )
        return [
            value if np.shape(value) == spec.shape else np.broadcast_to(value, spec.shape)
            for value, spec in given
        ]

    def action(self, actions: list[Any], index: int) -> Any:
        """Returns the action of a row; `actions` are arrays [N, ...] as tree flattens them."""
        named = zip(self._single.action_names, actions, strict=True)
        return self._single.nested_action({name: array[index] for name, array in named})

    def put(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Puts the TimeStep of an environment into its row.

        Raises:
          RuntimeError: a value does not conform to its spec; the row is as it was.
        """
        values = self._single.flat_observations(timestep, self._names)
        fitting = [
            (array, self._fitting(name, array, values[name]))
            for name, array in self._arrays.items()
        ]
        for array, value in fitting:
            array[index] = value
        if not self._sends_discount:
            # `_check_default_discount` has seen that it is 1 or 0.
            self._discount[index] = 1.0 if timestep.discount is None else timestep.discount
        self._step_type[index] = timestep.step_type

    def timestep(self, kind: dm_env.StepType, failures: Mapping[int, str]) -> dm_env.TimeStep:
        """Returns the TimeStep of all rows, whose arrays the next `put` overwrites."""
        observation = {
            **self._named(self._observation),
            batches.STEP_TYPE: self._step_type,
            batches.ROW_ERRORS: json.dumps(failures) if failures else "",
        }
        return dm_env.TimeStep(kind, self._reward, self._discount, observation)

    def _named(self, structure: Any) -> dict[Any, Any]:
        if isinstance(structure, dict):
            taken = sorted({batches.STEP_TYPE, batches.ROW_ERRORS} & structure.keys())
            if taken:
                raise SpecError(
                    f"observation {taken[0]!r} has the name of an observation of every batch; "
                    "rename it to serve batches"
                )
            return structure
        if isinstance(structure, list | tuple):
            return {str(index): part for index, part in enumerate(structure)}
        return {} if structure is None else {"observation": structure}

    def _fitting(self, name: str, array: npt.NDArray[Any], value: Any) -> Any:
        """Returns a value that can be put into a row of an array without a loss."""
        if type(value) is np.ndarray and value.dtype == array.dtype:
            shape = value.shape
        elif array.dtype == object:
            value = np.asarray(value, object)
            shape = value.shape
        else:
            where = f"observation {name!r}"
            try:
                value = casting.exact_cast(casting.as_array(value, where), array.dtype, where)
            except SpecError as error:
                raise RuntimeError(f"the environment violates its own specs: {error}") from error
            shape = value.shape
        if shape != array.shape[1:]:
            raise RuntimeError(
                f"the environment violates its own specs: observation {name!r} has the shape "
                f"{list(shape)}, its spec {list(array.shape[1:])}"
            )
        return value if shape else value[()]


def check_num_envs(count: Any) -> int:
    """Returns the number of rows that a client asks for; RequestError if it cannot be had."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise RequestError.invalid(
            f"setting {batches.NUM_ENVS!r}: expected an integer, got {count!r}"
        )
    if not 1 <= count <= MAX_ROWS:
        raise RequestError.invalid(
            f"setting {batches.NUM_ENVS!r} is {count}; a batch has 1 to {MAX_ROWS} environments"
        )
    return int(count)


def settings_of_rows(settings: Settings, count: int) -> list[dict[str, Any]]:
    """Returns the settings of each row.

    Args:
      settings: by flat name; those that begin with `rows.` have a value for each row.
      count: the number of rows.

    Raises:
      RequestError: one has not as many values as there are rows.
    """
    prefix = batches.ROWS + nesting.SEPARATOR
    shared = {name: value for name, value in settings.items() if not name.startswith(prefix)}
    of_rows: list[dict[str, Any]] = [dict(shared) for _ in range(count)]
    for name, values in settings.items():
        if not name.startswith(prefix):
            continue
        array = np.asarray(values)
        if array.ndim == 0 or len(array) != count:
            raise RequestError.invalid(
                f"setting {name!r} has the shape {list(array.shape)}; expected [{count}, ...], a "
                "value for each row"
            )
        for own, value in zip(of_rows, array, strict=True):
            # As settings of a single environment: int, float, bool and str of Python.
            single = value.item() if isinstance(value, np.generic) else value
            own[name.removeprefix(prefix)] = single
    return of_rows


def _specs_of(environment: dm_env.Environment) -> tuple[Any, Any, Any, Any]:
    return (
        environment.action_spec(),
        environment.observation_spec(),
        environment.reward_spec(),
        environment.discount_spec(),
    )


def _equal(one: Any, other: Any) -> bool:
    try:
        tree.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return False
    return all(a == b for a, b in zip(_leaves(one), _leaves(other), strict=True))


def _leaves(structure: Any) -> list[Any]:
    return [] if structure is None else tree.flatten(structure)


def _check_size(all_specs: tuple[Any, ...], count: int) -> None:
    """Raises an error if no rows can be made of specs, or too large ones, before they are."""
    for spec in _leaves(all_specs):
        if isinstance(spec, VARIABLE):
            raise SpecError(
                f"{spec.name!r} is of variable length, and rows of a batch have one shape; open a "
                "world for each environment instead"
            )
    # What only the length of a str adds is not known.
    size = count * sum(
        int(np.prod(spec.shape, dtype=np.int64)) * spec.dtype.itemsize
        for spec in _leaves(all_specs[1:])
        if spec is not None
    )
    if size > MAX_BYTES:
        raise RequestError.invalid(
            f"the observations of {count} rows would take {size} bytes; a batch may have "
            f"{MAX_BYTES}; ask for fewer rows"
        )


def _batched(structure: Any, count: int) -> Any:
    if structure is None:
        return None
    return tree.map_structure(lambda spec: batch_spec(spec, count), structure)


def _arrays(structure: Any) -> Any:
    if structure is None:
        return None
    return tree.map_structure(_zeros, structure)


def _zeros(spec: specs.Array) -> npt.NDArray[Any]:
    if isinstance(spec, specs.StringArray):
        return np.full(spec.shape, "", object)
    return np.zeros(spec.shape, spec.dtype)


def _failed(index: int, error: Exception) -> str:
    _log.warning("row %d of a batch failed", index, exc_info=error)
    return shortened(f"{type(error).__name__}: {error}", _ERROR_BYTES)
