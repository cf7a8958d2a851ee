"""Objects that a person names on a command line as MODULE:NAME."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from dm_env_rpc_client.errors import SpecError

__all__ = ["guarded", "load_object", "raised_by"]


def load_object(reference: str, what: str) -> Any:
    """Imports the object that MODULE:NAME names, from the current folder too.

    Args:
      reference: MODULE:NAME.
      what: what it is for, for error messages.

    Raises:
      SpecError: there is none, or its module cannot be imported.
    """
    module_name, found, name = reference.partition(":")
    if not found or not module_name or not name:
        raise SpecError(f"{what} looks like MODULE:NAME, such as my_envs:make, got {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
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
    """Returns a function of the user's own that says, when it fails, that it was the one.

    Args:
      function: what `load_object` found.
      what: what it is for, for error messages.

    Returns:
      A function with the same arguments and result, which raises SpecError where the other
      raises anything else.
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
    """Says which error it is and, other than a traceback, in one line where it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
