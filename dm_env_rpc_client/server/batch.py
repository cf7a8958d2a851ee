"""Several environments of one factory as one environment, whose arrays have a row for each.

What its names mean for a client is written down in the guide "Serve a batch".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.error_log import Report, unreported
from dm_env_rpc_client.server.owned import in_thread_of
from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.server.request_errors import RequestError, environments_own, in_request
from dm_env_rpc_client.server.rows import EnvironmentRows, Rows, named
from dm_env_rpc_client.server.turns import Turns, Waits
from dm_env_rpc_client.server.worlds.flat_specs import FlatSpecs
from dm_env_rpc_client.server.worlds.spec_checks import METHODS, Specs, specs_of
from dm_env_rpc_client.tensors import nesting, structures
from dm_env_rpc_client.tensors.limits import DEFAULT
from dm_env_rpc_client.tensors.structures import leaves

Settings: TypeAlias = Mapping[str, Any]
"""By flat name."""

MAX_ROWS = 16_384
"""The most environments of one batch: each takes memory and a place in every message."""

MAX_BYTES = DEFAULT.message_bytes
"""What the observations of all rows may take: what a client takes in one message by default."""


def properties_of_batches(processes: int | None) -> Properties:
    """Returns what every client of a server may read, so that it knows that there are batches.

    Args:
      processes: the number of its processes; None for its own alone.
    """
    most = MAX_ROWS if processes is None else np.array([MAX_ROWS, processes])
    return Properties.of_getters({batches.MAX_NUM_ENVS: lambda: most})


class Batch(dm_env.Environment):
    """Steps environments, and has their results in arrays [N, ...].

    They step one after the other, or at the same time in threads of their own if they are known to
    wait rather than to compute when they are made.

    The step after a row's LAST one begins its next sequence and ignores its action; a FIRST row
    has reward 0 and discount 1. What an environment raises is the text of its row in the
    observation `row_errors`: that row stays as it was, and the others have taken their step.

    Args:
      make: makes the environment of a row from its settings, by flat name.
      settings: those of the world, by flat name, with `num_envs`.
      waits: whether the environments are known to wait.
      report: takes what rows have raised, and what closing environments raises beside the first
        error.

    Attributes:
      reset_settings: None: it takes all settings of a Reset itself.

    Raises:
      RequestError: the number of rows, or settings of rows, are wrong.
      SpecError: an environment has specs that cannot be sent.
      RuntimeError: the environments have different specs, for no reason.
    """

    reset_settings = None

    def __init__(
        self,
        make: Callable[[Settings], dm_env.Environment],
        settings: Settings,
        waits: Waits,
        report: Report = unreported,
    ):
        self._make = make
        self._report = report
        own = dict(settings)
        self.num_envs = check_num_envs(own.pop(batches.NUM_ENVS))
        self._wish = str(own.pop(batches.AUTORESET_MODE, "NEXT_STEP"))
        if own.pop(batches.STEP_MASK, False):
            raise RequestError.invalid(
                f"setting {batches.STEP_MASK!r}: all rows of a batch step together; open several "
                "batches, or a world for each environment, to step some of them"
            )
        prefix = batches.ROWS + nesting.SEPARATOR
        has_row_settings = any(name.startswith(prefix) for name in own)
        self._settings = _settings_of_rows(own, self.num_envs)
        self._turns = Turns(self.num_envs, waits)
        self._environments: list[dm_env.Environment] = []
        # Those that settings have replaced, and that are to be closed.
        self._replaced: list[dm_env.Environment] = []
        try:
            for index, own in enumerate(self._settings):
                self._environments.append(self._turns.make(index, make, own))
                if index == 0:
                    self._specs, self._rows = self._new_rows(self._environments[0])
                else:
                    environment = self._environments[index]
                    _check_specs(environment, index, self._specs, has_row_settings)
        except BaseException:
            self._close_all(self._environments)
            self._turns.close()
            raise
        # The rows in which the next reset begins a sequence; None for all.
        self._mask: npt.NDArray[np.bool_] | None = None

    @property
    def properties(self) -> Mapping[str, Callable[[], Any]]:
        """What a server offers as properties: functions of their values, by key."""
        return {
            batches.WORLD_NUM_ENVS: lambda: self.num_envs,
            batches.WORLD_AUTORESET_MODE: lambda: self._rows.mode,
            **self._rows.properties(self._environments),
        }

    def offer_calls(
        self, properties: Properties, callable_names: Sequence[str], settable_names: Sequence[str]
    ) -> None:
        """Adds properties with which clients call and set what is allowed, if rows have any."""
        self._rows.offer_calls(properties, self._environments, callable_names, settable_names)

    @property
    def default_actions(self) -> Mapping[str, Any]:
        """Values, by flat name, for actions that a step leaves out, as the rows have them."""
        return getattr(self._environments[0], "default_actions", {})

    def configure(self, settings: Settings) -> None:
        """Applies settings of a Reset to the rows in which it begins a sequence.

        Before the next `reset` it may be called several times, for other rows each.

        Args:
          settings: `reset_mask`, bool [N], the rows; `rows`, arrays [N, ...] with a value for each;
            all others are for all of these rows. An environment that takes them itself (see
            `TakesSettings`) gets them; the others are made anew.

        Raises:
          ValueError: the mask, or a setting, is invalid. The rows are as they were, after this and
            any other error.
        """
        flat = nesting.flatten_dict(settings, nesting.SEPARATOR, strict=False)
        mask = flat.pop(batches.RESET_MASK, None)
        if mask is not None:
            mask = batches.checked_reset_mask(mask, self.num_envs)
        try:
            of_rows = _settings_of_rows(flat, self.num_envs)
        except RequestError as error:
            raise ValueError(str(error)) from error
        made: dict[int, dm_env.Environment] = {}
        # Those whose specs may be others now.
        changed: dict[int, dm_env.Environment] = {}
        kept: dict[int, dict[str, Any]] = {}
        undo: list[Callable[[], object]] = []

        def configure_row(index: int) -> None:
            environment, own = self._environments[index], of_rows[index]
            names = getattr(environment, "reset_settings", ())
            own_names = [n for n in own if n.partition(nesting.SEPARATOR)[0] in names]
            remaining = {n: value for n, value in own.items() if n not in own_names}
            if remaining:
                kept[index] = {**self._settings[index], **remaining}
                environment = self._made(index, kept[index])
                made[index] = changed[index] = environment
            if own_names:
                changed[index] = environment
                nested = {name: own[name] for name in own_names}
                nested = nesting.unflatten_dict(nested, nesting.SEPARATOR)
                undo_row = environment.configure(nested)
                if undo_row is not None:
                    undo.append(functools.partial(in_thread_of, environment, undo_row))

        try:
            for index in _indices(mask, self.num_envs):
                configure_row(index)
            specs_and_rows = self._specs_and_rows_after(changed)
        except BaseException:
            for each in reversed(undo):
                each()
            self._close_all(made.values())
            raise
        for index, environment in made.items():
            self._replaced.append(self._environments[index])
            self._environments[index] = environment
            self._settings[index] = kept[index]
        self._specs, self._rows = specs_and_rows
        named = np.ones(self.num_envs, np.bool_) if mask is None else mask
        self._mask = named if self._mask is None else named | self._mask

    def reset(self) -> dm_env.TimeStep:
        """Begins a sequence in all rows, or in those that `configure` has named since the last one.

        Rows in which it begins none are as they were.
        """
        if self._replaced:
            self.close_replaced()
        mask, self._mask = self._mask, None
        # A row that has never begun has nothing to show.
        mask = None if mask is None else mask | ~self._rows.has_begun
        rows = self._rows
        failures = self._turns.take(
            _indices(mask, self.num_envs),
            lambda index, environment, _: rows.begin(index, environment),
            self._environments,
        )
        return self._timestep(dm_env.StepType.FIRST, failures, "reset")

    def step(self, action: Any) -> dm_env.TimeStep:
        """Steps every row, or begins a sequence where none is running.

        Args:
          action: arrays [N, ...] in the structure of `action_spec`.
        """
        rows = self._rows
        actions = rows.actions(action)
        failures = self._turns.take(range(self.num_envs), rows.step, self._environments, actions)
        return self._timestep(dm_env.StepType.MID, failures, "step")

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
        self._replaced += self._environments
        self._environments = []
        try:
            self.close_replaced()
        finally:
            self._turns.close()

    def close_replaced(self) -> None:
        """Closes the environments that `configure` has replaced.

        It is called when the settings are in force. Raises the first error after all have been
        closed.
        """
        environments, self._replaced = self._replaced, []
        self._close_all(environments, raises=True)

    def _close_all(self, environments: Iterable[dm_env.Environment], raises: bool = False) -> None:
        """Closes environments, each once; `raises` the first error after that, or reports it."""
        failures: list[Exception] = []
        for environment in environments:
            try:
                environment.close()
            except Exception as error:
                failures.append(error)
        for failure in failures[raises:]:
            self._report(failure, "closing an environment of a batch failed")
        if failures and raises:
            raise failures[0]

    def _timestep(
        self, kind: dm_env.StepType, failures: dict[int, Exception], request: str
    ) -> dm_env.TimeStep:
        """Returns the TimeStep of all rows, and reports what they have raised."""
        timestep = self._rows.timestep(kind, failures)
        for row, error in failures.items():
            self._report(error, f"row {row} of a batch failed in a {request} request")
        return timestep

    def _made(self, index: int, settings: Settings) -> dm_env.Environment:
        """Makes the environment of a row again; what it cannot be is no fault of a setting."""
        try:
            return self._turns.make(index, self._make, settings)
        except ValueError as error:
            raise environments_own(error) from error

    def _new_rows(self, environment: dm_env.Environment) -> tuple[Specs, Rows]:
        found = specs_of(environment)
        with in_request():
            _check_size(found, self.num_envs)
        FlatSpecs(*found, {})  # What cannot be served without rows either is no fault of a request.
        with in_request():
            # Clients, and readers of recordings, take an action of this name for a mask.
            named(found[0], "action", (batches.STEP_MASK,))
            make_rows = getattr(environment, "batch_rows", None)
            if make_rows is None:
                return found, EnvironmentRows(environment, self.num_envs)
            return found, make_rows(self.num_envs, self._wish)

    def _specs_and_rows_after(
        self, changed: Mapping[int, dm_env.Environment]
    ) -> tuple[Specs, Rows]:
        """Returns the specs of a row that are in force now, and rows for them.

        Args:
          changed: the environments whose specs may be others now, by row.

        Raises:
          RequestError: not all rows have the same specs.
        """
        after = self._specs, self._rows
        if len(changed) == self.num_envs and not (
            _are_equal(specs_of(changed[0]), self._specs) and self._rows.fits(changed[0])
        ):
            after = self._new_rows(changed[0])
        for index, environment in changed.items():
            _check_specs(environment, index, after[0], True)
            if not after[1].fits(environment):
                raise RequestError.invalid(
                    f"row {index} of the batch would send its infos in another form than the other "
                    "rows; a Reset with the setting 'infos' is for all rows"
                )
        return after


def _indices(mask: npt.NDArray[np.bool_] | None, count: int) -> Sequence[int]:
    """Returns the rows of a mask; all if there is none."""
    return range(count) if mask is None else np.flatnonzero(mask).tolist()


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


def _settings_of_rows(settings: Settings, count: int) -> list[dict[str, Any]]:
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


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two structures have the same specs under the same keys, in the same order."""
    return structures.leaves_with_path(one) == structures.leaves_with_path(other)


def _check_specs(
    environment: dm_env.Environment, index: int, expected: Specs, has_settings: bool
) -> None:
    """Raises an error if the environment of a row has other specs than those expected.

    Args:
      environment: of the row.
      index: the row.
      expected: the specs of the other rows.
      has_settings: whether a request has settings for single rows, which may be the reason.
    """
    for kind, own, other in zip(METHODS, expected, specs_of(environment), strict=True):
        if not _are_equal(own, other):
            text = (
                f"row {index} of the batch has another {kind}() than row 0: {other} instead of "
                f"{own}; the environments of one batch have the same"
            )
            raise RequestError.invalid(text) if has_settings else RuntimeError(text)


def _check_size(all_specs: tuple[Any, ...], count: int) -> None:
    """Raises an error if the rows of specs would be too large, before they are made."""
    # What only the length of a str adds is not known.
    size = count * sum(
        math.prod(map(int, spec.shape)) * spec.dtype.itemsize
        for spec in leaves(all_specs[1:])
        if spec is not None
    )
    if size > MAX_BYTES:
        raise RequestError.invalid(
            f"the observations of {count} rows would take {size} bytes; a batch may have "
            f"{MAX_BYTES}; ask for fewer rows"
        )
