"""What `step` and `reset` of Gymnasium environments have returned by mistake, explained.

Unpacking a step checks it already, so that steps cost nothing more: these are called when it fails.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

import dm_env

from dm_env_rpc_client.system.wrong_returns import described

__all__ = ["begun", "explain_wrapper", "refuse_step"]

_STEP = "(observation, reward, terminated, truncated, info)"
_RESET = "(observation, info)"

_OLD = (
    "; that is the interface of gym before 0.26: change the environment, or wrap it with the "
    "package shimmy"
)


def begun(environment: Any, returned: Any) -> tuple[Any, Any]:
    """Returns what `reset` returned: the observation and the info.

    Args:
      environment: the environment.
      returned: what its `reset` returned.

    Raises:
      TypeError: it is something else. An array of two numbers, or a dict with two keys, would pass
        for both.
    """
    if isinstance(returned, tuple | list) and len(returned) == 2:
        observation, info = returned
        if info is None or isinstance(info, Mapping):
            return observation, info
    advice = "" if returned is None else _advice(returned, "restart") or _OLD
    raise _error(environment, "reset", described(returned), _RESET + advice)


def refuse_step(environment: Any, returned: Any) -> NoReturn:
    """Raises TypeError for what `step` returned in the place of five values."""
    is_old = type(returned) is tuple and len(returned) == 4
    advice = _advice(returned, "transition") or (_OLD if is_old else "")
    raise _error(environment, "step", described(returned), _STEP + advice) from None


def explain_wrapper(environment: Any, method: str, error: Exception) -> None:
    """Raises TypeError if one of Gymnasium's wrappers could not unpack what a method returned.

    Args:
      environment: the environment.
      method: the method.
      error: what its call raised.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__", "").partition(".")[0]
    if module == "gymnasium" and "unpack" in str(error):
        expected = _STEP if method == "step" else _RESET
        raise _error(environment, method, f"other values ({error})", expected) from error


def _advice(returned: Any, function: str) -> str:
    if isinstance(returned, dm_env.TimeStep):
        return f" of Gymnasium, not dm_env.{function}(...): or inherit from dm_env.Environment"
    return ""


def _error(environment: Any, method: str, returned: str, expected: str) -> TypeError:
    name = type(environment.unwrapped).__name__
    return TypeError(f"{method} of {name} returned {returned}; expected {expected}")
