"""Several environments created by one factory and served as one, with a row for each.

The guide "Serve a batch" explains the names that clients see.
"""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.protocol import batches
from dm_env_rpc_client.server.batch_settings import (
    MAX_ROWS,
    AskedRows,
    Settings,
    indices,
    of_reset,
)
from dm_env_rpc_client.server.errors import (
    Report,
    RequestError,
    environments_own,
    in_request,
    unreported,
)
from dm_env_rpc_client.server.properties import Properties
from dm_env_rpc_client.server.row_turns import Turns, Waits
from dm_env_rpc_client.server.rows import EnvironmentRows, Rows, named
from dm_env_rpc_client.server.thread_bound import in_thread_of
from dm_env_rpc_client.server.worlds.flat_specs import (
    DEFAULT_DISCOUNT,
    METHODS,
    FlatSpecs,
    Specs,
    specs_of,
)
from dm_env_rpc_client.tensors import nesting, structures
from dm_env_rpc_client.tensors.memory_limits import DEFAULT
from dm_env_rpc_client.tensors.structures import leaves

MAX_BYTES = DEFAULT.message_bytes
"""Maximum size, in bytes, of the observations of all rows: a client's default limit for one
message."""


def properties_of_batches() -> Properties:
    """Return the property that tells every client that the server can create batches."""
    return Properties.of_getters({batches.MAX_NUM_ENVS: lambda: MAX_ROWS})


class AnyBatch(dm_env.Environment, abc.ABC):
    """The base class of batches, whether their rows are in this process or in several others.

    The step after a row's LAST step begins the row's next sequence and ignores its action; a FIRST
    step has reward 0 and discount 1. If an environment raises an exception, the observation
    `row_errors` contains its text; the row of that environment is unchanged, and the others have
    taken their step.

    Args:
      count: the number of rows.
      report: receives exceptions raised by rows.

    Attributes:
      num_envs: the number of rows.
      reset_settings: None, because the batch itself applies all settings of a Reset.
    """

    reset_settings = None
    _rows: Rows

    def __init__(self, count: int, report: Report):
        self.num_envs = count
        self._report = report

    @property
    @abc.abstractmethod
    def environments(self) -> Sequence[Any]:
        """The environments of all rows, or stand-ins for these environments."""

    @property
    @abc.abstractmethod
    def default_actions(self) -> Mapping[str, Any]:
        """The default values, for all rows, of actions that a step omits, by flat name."""

    @property
    def properties(self) -> Mapping[str, Callable[[], Any]]:
        """The functions that return the values of properties for clients, by key."""
        offers = self._rows.kind.offers
        return {
            batches.WORLD_NUM_ENVS: lambda: self.num_envs,
            batches.WORLD_AUTORESET_MODE: lambda: self._rows.kind.mode,
            **({} if offers is None else offers.properties(self.environments)),
        }

    def offer_calls(
        self, properties: Properties, callable_names: Sequence[str], settable_names: Sequence[str]
    ) -> None:
        """Add properties for the methods and attributes of rows that clients may use, if any."""
        offers = self._rows.kind.offers
        if offers is not None:
            offers.offer_calls(properties, self.environments, callable_names, settable_names)

    @abc.abstractmethod
    def configure(self, settings: Settings) -> None:
        """Apply the settings of a Reset to the rows in which the Reset begins a sequence.

        It may be called several times before the next `reset`, each time for other rows.

        Args:
          settings: `reset_mask`, bool [N], selects the rows; `rows` has arrays [N, ...] with a
            value for each; other settings apply to all selected rows. An environment that takes
            them itself (see `TakesSettings`) receives them; the others are recreated.

        Raises:
          ValueError: the mask or a setting is invalid. After this or any other error, the rows are
            unchanged.
        """

    @abc.abstractmethod
    def close_replaced(self) -> None:
        """Close the environments that `configure` replaced.

        Called when the settings are in effect. Raises the first error after all of these
        environments have been closed.
        """

    def action_spec(self) -> Any:
        """Return the specs of the actions, each of shape [N, ...]."""
        return self._rows.action_spec

    def observation_spec(self) -> Any:
        """Return the observation specs, each of shape [N, ...], including the row observations."""
        return self._rows.observation_spec

    def reward_spec(self) -> Any:
        """Return the spec of the reward, of shape [N, ...]."""
        return self._rows.reward_spec

    def discount_spec(self) -> Any:
        """Return the spec of the discount, of shape [N, ...]."""
        return self._rows.discount_spec

    def _timestep(
        self, kind: dm_env.StepType, failures: dict[int, Exception | str], request: str
    ) -> dm_env.TimeStep:
        """Return the TimeStep of all rows, and report the errors raised by rows."""
        timestep = self._rows.timestep(kind, failures)
        self.report_rows(failures, request)
        return timestep

    def report_rows(
        self, failures: Mapping[int, Exception | str], request: str, first: int = 0
    ) -> None:
        """Report the errors of rows, except those that were reported when they were raised.

        Args:
          failures: the errors by row; those given as strings have already been reported.
          request: the kind of the request.
          first: the index of the first row in the batch.
        """
        for row, error in failures.items():
            if isinstance(error, Exception):
                text = f"row {first + row} of a batch failed in a {request} request"
                self._report(error, text)


class Prepared(NamedTuple):
    """The prepared settings of a Reset. Call either `keep` or `undo`, exactly once.

    Attributes:
      keep: applies the settings.
      undo: leaves the rows unchanged.
      taken: the names of the settings that environments applied themselves.
      rows: the arrays with these settings.
      default_actions: the default actions of the batch with these settings.
    """

    keep: Callable[[], None]
    undo: Callable[[], None]
    taken: frozenset[str]
    rows: Rows
    default_actions: Mapping[str, Any]


class Batch(AnyBatch):
    """Several environments stepped together, with results in arrays of shape [N, ...].

    The environments step one after another, in the thread of the batch. If `waits` says that they
    wait rather than compute, they step at the same time, in threads of their own.

    Args:
      make: creates the environment of a row from the row's settings, keyed by flat name.
      asked: the requested rows.
      waits: whether the environments are known to wait.
      report: receives exceptions raised by rows, and those raised by closing environments, except
        the first.

    Raises:
      SpecError: an environment has specs that cannot be sent.
      RequestError: the rows would be too large, or their settings give them different specs.
      RuntimeError: the environments have different specs without such settings.
    """

    def __init__(
        self,
        make: Callable[[Settings], dm_env.Environment],
        asked: AskedRows,
        waits: Waits,
        report: Report = unreported,
    ):
        super().__init__(len(asked.settings), report)
        self._make = make
        self._wish = asked.mode
        self._first, self._total = asked.first, asked.total
        self._settings: list[Settings] = list(asked.settings)
        self._turns = Turns(self.num_envs, waits)
        self._environments: list[dm_env.Environment] = []
        # Environments replaced by settings, to be closed.
        self._replaced: list[dm_env.Environment] = []
        try:
            for index, own in enumerate(self._settings):
                # In the thread that will step it: an environment keeps one thread for its life.
                environment = self._turns.make(index, make, own)
                self._environments.append(environment)
                # The first row decides the arrays; the others are compared with its specs.
                if index == 0:
                    self._specs, self._rows = self._new_rows(environment)
                else:
                    check_specs(
                        specs_of(environment),
                        self._first + index,
                        self._specs,
                        asked.has_row_settings,
                    )
        except BaseException:
            # No one else has the rows made so far; their processes or sockets would stay open.
            self._close_all(self._environments)
            self._turns.close()
            raise
        # The rows in which the next reset begins a sequence; None for all.
        self._mask: npt.NDArray[np.bool_] | None = None

    @property
    def environments(self) -> Sequence[dm_env.Environment]:
        return self._environments

    @property
    def default_actions(self) -> Mapping[str, Any]:
        return _defaults(self._environments[0])

    @property
    def rows(self) -> Rows:
        """The arrays of the batch; they are replaced if a Reset's settings change the specs."""
        return self._rows

    def configure(self, settings: Settings) -> None:
        self.prepare(of_reset(settings, self.num_envs)).keep()

    def prepare(self, of_rows: Mapping[int, Settings]) -> Prepared:
        """Prepare the rows for the settings of a Reset without applying these settings.

        Args:
          of_rows: the settings by row, for the rows in which it begins a sequence.

        Raises:
          Exception: as `configure`; the rows are unchanged.
        """
        made: dict[int, dm_env.Environment] = {}
        # Environments whose specs may have changed.
        changed: dict[int, dm_env.Environment] = {}
        kept: dict[int, dict[str, Any]] = {}
        taken: set[str] = set()
        # In reverse, as settings may build on each other; an error does not keep the others.
        undone = contextlib.ExitStack()
        undone.callback(lambda: self._close_all(made.values()))

        def prepare_row(index: int) -> None:
            environment, own = self._environments[index], of_rows[index]
            names = getattr(environment, "reset_settings", ())
            own_names = [n for n in own if n.partition(nesting.SEPARATOR)[0] in names]
            remaining = {n: value for n, value in own.items() if n not in own_names}
            # Arguments of the constructor: the row needs a new environment, which replaces the old
            # one in `keep`.
            if remaining:
                kept[index] = {**self._settings[index], **remaining}
                environment = self._made(index, kept[index])
                made[index] = changed[index] = environment
            if own_names:
                changed[index] = environment
                taken.update(own_names)
                nested = {name: own[name] for name in own_names}
                nested = nesting.unflatten_dict(nested, nesting.SEPARATOR)
                undo_row = environment.configure(nested)
                # Undone in the thread of the environment, like any other call of it.
                if undo_row is not None:
                    undone.callback(in_thread_of, environment, _called, undo_row)

        try:
            for index in of_rows:
                prepare_row(index)
            # Checked before anything is in force: rows whose specs differ from their neighbours'
            # are refused.
            specs_and_rows = self._specs_and_rows_after(changed)
        except BaseException:
            undone.close()
            raise

        def keep() -> None:
            for index, environment in made.items():
                # Closed later by `close_replaced`: an error there must not undo settings that are
                # in force.
                self._replaced.append(self._environments[index])
                self._environments[index] = environment
                self._settings[index] = kept[index]
            self._specs, self._rows = specs_and_rows
            named = np.zeros(self.num_envs, np.bool_)
            named[list(of_rows)] = True
            self._mask = named if self._mask is None else named | self._mask

        default_actions = _defaults(made.get(0, self._environments[0]))
        return Prepared(keep, undone.close, frozenset(taken), specs_and_rows[1], default_actions)

    def begin_all(self) -> None:
        """Make the next reset begin a sequence in all rows, regardless of `configure`."""
        self._mask = None

    def reset(self) -> dm_env.TimeStep:
        """Begin a sequence in all rows, or only in those configured since the last reset.

        Other rows remain unchanged.
        """
        return self._timestep(dm_env.StepType.FIRST, self.begin_rows(), "reset")

    def step(self, action: Any) -> dm_env.TimeStep:
        """Step every row that has a running sequence, and begin a sequence in all others.

        Args:
          action: arrays [N, ...] in the structure of `action_spec`.
        """
        return self._timestep(dm_env.StepType.MID, self.step_rows(action), "step")

    def begin_rows(self) -> dict[int, Exception | str]:
        """Do the work of `reset` and return the errors raised by rows."""
        # Without a server, nothing else closes the replaced environments.
        if self._replaced:
            self.close_replaced()
        mask, self._mask = self._mask, None
        # Rows that have never begun have no observation to return yet, so they begin, too.
        mask = None if mask is None else mask | ~self._rows.has_begun
        rows = self._rows
        try:
            return self._turns.take(
                indices(mask, self.num_envs),
                lambda index, environment, _: rows.begin(index, environment),
                self._environments,
            )
        except BaseException:
            rows.drop_infos()
            raise

    def step_rows(self, action: Any) -> dict[int, Exception | str]:
        """Do the work of `step` and return the errors raised by rows."""
        rows = self._rows
        actions = rows.actions(action)
        try:
            return self._turns.take(range(self.num_envs), rows.step, self._environments, actions)
        except BaseException:
            rows.drop_infos()
            raise

    def close(self) -> None:
        """Close every environment, and then raise the first error, if any."""
        self._replaced += self._environments
        self._environments = []
        try:
            self.close_replaced()
        finally:
            self._turns.close()

    def close_replaced(self) -> None:
        environments, self._replaced = self._replaced, []
        self._close_all(environments, raises=True)

    def _close_all(self, environments: Iterable[dm_env.Environment], raises: bool = False) -> None:
        """Close each environment once. Report errors; if `raises` is true, raise the first one."""
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

    def _made(self, index: int, settings: Settings) -> dm_env.Environment:
        """Recreate the environment of a row, and turn a ValueError into a RuntimeError."""
        try:
            return self._turns.make(index, self._make, settings)
        except ValueError as error:
            raise environments_own(error) from error

    def _new_rows(self, environment: dm_env.Environment) -> tuple[Specs, Rows]:
        found = specs_of(environment)
        with in_request():
            _check_size(found, self._total)
        # Outside `in_request`: specs that cannot be served at all are no fault of a request.
        FlatSpecs(*found, {})
        with in_request():
            # Clients, and readers of recordings, would take an action of this name for a mask.
            named(found[0], "action", (batches.STEP_MASK,))
            make_rows = getattr(environment, "batch_rows", None)
            if make_rows is None:
                return found, EnvironmentRows(environment, self.num_envs)
            return found, make_rows(self.num_envs, self._wish)

    def _specs_and_rows_after(
        self, changed: Mapping[int, dm_env.Environment]
    ) -> tuple[Specs, Rows]:
        """Return the specs of a row with the new settings, and the `Rows` for these specs.

        Args:
          changed: the environments whose specs may have changed, by row.

        Raises:
          RequestError: the rows have different specs.
        """
        after = self._specs, self._rows
        if len(changed) == self.num_envs and not (
            _are_equal(specs_of(changed[0]), self._specs) and self._rows.fits(changed[0])
        ):
            after = self._new_rows(changed[0])
        for index, environment in changed.items():
            check_specs(specs_of(environment), self._first + index, after[0], True)
            if not after[1].fits(environment):
                raise other_form(self._first + index)
        return after


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two structures have equal specs under the same keys, in the same order."""
    return structures.leaves_with_path(one) == structures.leaves_with_path(other)


def check_specs(own: Specs, index: int, expected: Specs, has_settings: bool) -> None:
    """Raise an error if the specs of a row differ from the expected specs.

    Args:
      own: the specs of the row.
      index: the index of the row.
      expected: the specs of the other rows.
      has_settings: whether a request has settings for single rows, which may explain the
        difference.
    """
    for kind, one, other in zip(METHODS, expected, own, strict=True):
        if not _are_equal(one, other):
            text = (
                f"row {index} of the batch has a different {kind}() from row 0: {other} instead of "
                f"{one}; environments of one batch must have the same"
            )
            raise RequestError.invalid(text) if has_settings else RuntimeError(text)


def other_form(index: int) -> RequestError:
    """Return the error for a row whose infos would differ in layout from those of other rows."""
    return RequestError.invalid(
        f"row {index} of the batch would send its infos in a different layout from the other "
        "rows; send a Reset with the setting 'infos' to all rows"
    )


def _defaults(environment: Any) -> Mapping[str, Any]:
    return getattr(environment, "default_actions", {})


def _called(environment: Any, function: Callable[[], object]) -> None:
    """Ignore the environment and call a function; used with `in_thread_of`."""
    function()


def _check_size(all_specs: Specs, count: int) -> None:
    """Raise RequestError before creating rows if a batch with these specs would be too large."""
    _, observation, reward, discount = all_specs
    # Batches send every discount.
    sent = observation, reward, DEFAULT_DISCOUNT if discount is None else discount
    # Without the characters of strings, whose number is not known here.
    size = count * sum(
        math.prod(map(int, spec.shape)) * spec.dtype.itemsize
        for spec in leaves(sent)
        if spec is not None
    )
    if size > MAX_BYTES:
        raise RequestError.invalid(
            f"the observations of {count} rows would take {size} bytes, but the limit for "
            f"a batch is {MAX_BYTES}; request fewer rows"
        )
