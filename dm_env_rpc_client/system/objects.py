"""Objects named as MODULE:NAME, on a command line or to `serve`."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from dm_env_rpc_client.errors import SpecError


def look_in_current_folder() -> None:
    """Has imports find the modules of the current folder, too, as commands do."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def load_object(reference: str, what: str) -> Any:
    """Imports the object that MODULE:NAME names.

    Args:
      reference: MODULE:NAME.
      what: the purpose of the object, for error messages.

    Raises:
      SpecError: the module cannot be imported, or has no such object.
    """
    module_name, found, name = reference.partition(":")
    if not found or not module_name or not name:
        raise SpecError(f"{what} looks like MODULE:NAME, such as my_envs:make, got {reference!r}")
    try:
        loaded: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise SpecError(f"cannot import {module_name!r}: {raised_by(error)}") from error
    for part in name.split("."):
        try:
            loaded = getattr(loaded, part)
        except AttributeError:
            raise SpecError(f"{module_name!r} has no {name!r}") from None
        except Exception as error:
            raise SpecError(
                f"cannot take {name!r} from {module_name!r}: {raised_by(error)}"
            ) from error
    return loaded


def guarded(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Returns a function of the user's own whose errors name it as their cause.

    Args:
      function: a function that `load_object` returned.
      what: the purpose of the function, for error messages.

    Returns:
      A function with the same arguments and result. It raises SpecError instead of any other
      exception.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SpecError:
            raise
        except (Exception, SystemExit) as error:
            raise SpecError(f"{what} failed: {raised_by(error)}") from error

    return call


def raised_by(error: BaseException) -> str:
    """Describes an error and the place that raised it in one line, unlike a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
