"""Create served environments by calling factories with the settings that clients send."""

from __future__ import annotations

import abc
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import dm_env
from google.rpc import code_pb2

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.batches import NUM_ENVS, ROWS, WORLD_NUM_ENVS
from dm_env_rpc_client.server.batch import Batch
from dm_env_rpc_client.server.batch_settings import AskedRows, check_num_envs
from dm_env_rpc_client.server.errors import Report, RequestError, unreported
from dm_env_rpc_client.server.row_turns import Waits
from dm_env_rpc_client.server.worlds.flat_specs import METHODS
from dm_env_rpc_client.server.worlds.world import Game, World
from dm_env_rpc_client.system.foreign_environments import (
    AS_DECLARED,
    Conversion,
    class_name,
    converted,
    described,
)
from dm_env_rpc_client.tensors import nesting

SERVED = (
    "a dm_env.Environment, a gymnasium.Env or gymnasium.vector.VectorEnv, a PettingZoo "
    "environment, a Game or a World"
)
"""The kinds of environments that can be served, for use in error messages."""


class BatchMaker(abc.ABC):
    """A factory that creates only batches and receives settings exactly as clients send them."""

    def __call__(self) -> Any:
        raise AssertionError(
            "a BatchMaker cannot be called; use `construct`, which calls `make_batch`"
        )

    @abc.abstractmethod
    def make_batch(self, settings: Mapping[str, Any], report: Report) -> dm_env.Environment:
        """Return a batch created with the settings that a client sends.

        Args:
          settings: values by flat name.
          report: receives exceptions raised by the batch's rows.

        Raises:
          As `construct`.
        """


def construct(
    factory: Callable[..., Any],
    settings: Mapping[str, Any],
    conversion: Conversion = AS_DECLARED,
    waits: Waits | None = None,
    report: Report = unreported,
    singleton: bool = False,
) -> Any:
    """Create an environment with a factory, or a batch if the settings contain `num_envs`.

    A factory with an argument `num_envs` receives it and makes the batch itself. Any other factory
    may also return a batch, which is served if it has the requested number of rows.

    Args:
      factory: returns an environment, a game or a world.
      settings: values by flat name; names with periods become nested dictionaries.
      conversion: how environments from other libraries are converted.
      waits: known facts about the rows of its batches, or None.
      report: receives exceptions raised by a batch's rows.
      singleton: whether a second environment, for another row, is refused.

    Returns:
      See `construct_one`; or a `Batch`.

    Raises:
      As `construct_one` and `Batch`.
    """
    if isinstance(factory, BatchMaker):
        return factory.make_batch(settings, report)
    if NUM_ENVS not in settings:
        return construct_one(factory, settings, conversion)
    # A factory with the parameter `num_envs` knows how to make a batch better than this package.
    if takes_rows(factory):
        own = {**settings, NUM_ENVS: check_num_envs(settings[NUM_ENVS])}
        return construct_one(factory, own, conversion)
    try:
        asked = AskedRows.of(settings)
        return construct_rows(factory, asked, conversion, waits or Waits(), report, singleton)
    except HasRowsError as found:
        made = found.made
        if made is None:
            made = construct_one(factory, found.settings, conversion)
        return _checked(made, settings)


def takes_rows(factory: Callable[..., Any]) -> bool:
    """Return whether a factory creates batches itself."""
    return NUM_ENVS in inspect.signature(factory).parameters


def construct_rows(
    factory: Callable[..., Any],
    asked: AskedRows,
    conversion: Conversion,
    waits: Waits,
    report: Report,
    singleton: bool = False,
) -> Batch:
    """Create rows by calling a factory once per row. For the arguments, see `construct`.

    Raises:
      HasRowsError: the factory makes batches itself. Otherwise as `construct_one` and `Batch`.
    """
    make = functools.partial(_construct_row, factory, conversion, threading.get_ident())
    if not singleton:
        return Batch(make, asked, waits, report)
    rows = itertools.count()

    def make_first(settings: Mapping[str, Any]) -> dm_env.Environment:
        # The first may turn out to be a batch itself, which is one environment.
        if next(rows):
            raise RequestError.invalid(
                f"setting {NUM_ENVS!r}: this server hosts one environment at a time (singleton); "
                f"serve a factory that has the argument {NUM_ENVS!r}, or omit the setting"
            )
        return make(settings)

    return Batch(make_first, asked, waits, report)


class HasRowsError(Exception):
    """Raised when the environment created for the first row of a batch is itself a batch.

    Attributes:
      made: the environment; None if it belonged to the row's thread and was closed there.
      settings: the settings of the row.
    """

    def __init__(self, made: Any, settings: Mapping[str, Any]):
        super().__init__(made)
        self.made = made
        self.settings = settings


def _checked(made: Any, settings: Mapping[str, Any]) -> Any:
    """Return a batch made by a factory, or raise RequestError if `settings` do not fit it."""
    asked = check_num_envs(settings[NUM_ENVS])
    of_rows = [name for name in settings if name.startswith(ROWS + nesting.SEPARATOR)]
    if asked == made.num_envs and not of_rows:
        return made
    # No world will own a batch of another size.
    made.close()
    wrong = f"setting {of_rows[0]!r} was given" if of_rows else f"setting {NUM_ENVS!r} is {asked}"
    # A code of its own: clients must not fall back to a world per row, each a whole batch.
    raise RequestError(
        code_pb2.OUT_OF_RANGE,
        f"{wrong}, but the environment of this server already has {made.num_envs} rows, "
        f"which settings cannot change; request {made.num_envs} rows or omit {NUM_ENVS!r}",
    )


def _construct_row(
    factory: Callable[..., Any],
    conversion: Conversion,
    thread: int,
    settings: Mapping[str, Any],
) -> dm_env.Environment:
    """Create a row of a world that is owned by the thread with the identifier `thread`."""
    made = construct_one(factory, settings, conversion)
    if isinstance(made, dm_env.Environment):
        properties = getattr(made, "properties", ())
        if isinstance(properties, Mapping) and WORLD_NUM_ENVS in properties:
            # Usable only in the thread that made it; in another one, it is closed and recreated.
            if threading.get_ident() == thread:
                raise HasRowsError(made, settings)
            made.close()
            raise HasRowsError(None, settings)
        return made
    if hasattr(made, "close"):
        made.close()
    raise RequestError.invalid(
        f"setting {NUM_ENVS!r}: this server hosts a {class_name(made)}, but a batch can contain "
        "only single-agent environments"
    )


def construct_one(
    factory: Callable[..., Any], settings: Mapping[str, Any], conversion: Conversion = AS_DECLARED
) -> Any:
    """Call `factory` with settings as keyword arguments.

    Args:
      factory: returns an environment, a game or a world.
      settings: values by flat name; names with periods become nested dictionaries.
      conversion: how environments from other libraries are converted.

    Returns:
      The result of the factory. A Gymnasium environment becomes a dm_env.Environment, and a
      PettingZoo environment becomes a `Game`.

    Raises:
      RequestError: the factory does not accept these settings. Exceptions other than TypeError and
        ValueError are failures of the environment and are not converted; nor are these two if
        there are no settings.
      SpecError: the result cannot be served.
      TypeError: the result is not an environment.
    """
    parameters = inspect.signature(factory)
    try:
        arguments = nesting.unflatten_dict(settings, nesting.SEPARATOR)
        # Checked before the call: a TypeError within the factory would look like a wrong setting.
        parameters.bind(**arguments)
    except (TypeError, SpecError) as error:
        known = ", ".join(parameters.parameters) or "none"
        raise RequestError.invalid(f"{error}; known settings: {known}") from error
    try:
        made = factory(**arguments)
    except (TypeError, ValueError) as error:
        # Without settings, the failure is the environment's own and not the request's.
        if not settings:
            raise
        refusal = f"the environment does not take these settings: {error}"
        raise RequestError.invalid(refusal) from error
    made = converted(made, conversion)
    check_made(made, f"the factory returned {described(made)}")
    return made


def check_made(made: Any, found: str) -> None:
    """Raise TypeError if an object is not an environment, a game or a world.

    Args:
      made: the object.
      found: a description of the object.
    """
    if isinstance(made, dm_env.Environment | World | Game):
        return
    missing = [name for name in ("reset", "step", *METHODS) if not hasattr(made, name)]
    if isinstance(made, type):
        found += f", not an environment; call it: {made.__name__}()"
    elif not missing:
        return
    elif "step" not in missing and "reset" not in missing:
        found += f", which has no {', '.join(missing)}"
    raise TypeError(f"{found}; expected {SERVED}")
