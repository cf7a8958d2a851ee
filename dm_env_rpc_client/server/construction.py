"""Making what is hosted from the settings that a client sends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.tensors import nesting

__all__ = ["construct"]


def construct(factory: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """Calls `factory` with settings as keyword arguments.

    Args:
      factory: makes the object.
      settings: values by flat name; names with periods become nested dictionaries.

    Raises:
      RequestError: the factory does not take these settings. What else it raises is the
        environment's own failure.
    """
    parameters = inspect.signature(factory)
    try:
        arguments = nesting.unflatten_dict(settings, nesting.SEPARATOR)
        parameters.bind(**arguments)
    except (TypeError, SpecError) as error:
        known = ", ".join(parameters.parameters) or "none"
        raise RequestError.invalid(f"{error}; settings: {known}") from error
    try:
        return factory(**arguments)
    except (TypeError, ValueError) as error:
        raise RequestError.invalid(f"the environment does not take these settings: {error}") from (
            error
        )
