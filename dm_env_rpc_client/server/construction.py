"""Calls the factory of a served environment with the settings that a client sent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.system.conversions import converted
from dm_env_rpc_client.tensors import nesting

__all__ = ["construct"]


def construct(factory: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """Calls `factory` with settings as keyword arguments.

    Args:
      factory: returns an environment, a game or a world.
      settings: values by flat name; names with periods become nested dictionaries.

    Returns:
      What it returned; a Gymnasium environment as a dm_env.Environment, and one of PettingZoo as
      a `Game`.

    Raises:
      RequestError: the factory does not take these settings. Exceptions other than
        TypeError and ValueError are failures of the environment and pass through.
      SpecError: what it made cannot be served.
    """
    parameters = inspect.signature(factory)
    try:
        arguments = nesting.unflatten_dict(settings, nesting.SEPARATOR)
        parameters.bind(**arguments)
    except (TypeError, SpecError) as error:
        known = ", ".join(parameters.parameters) or "none"
        raise RequestError.invalid(f"{error}; known settings: {known}") from error
    try:
        made = factory(**arguments)
    except (TypeError, ValueError) as error:
        raise RequestError.invalid(f"the environment does not take these settings: {error}") from (
            error
        )
    return converted(made)
