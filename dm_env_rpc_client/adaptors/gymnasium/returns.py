"""Errors that explain invalid results of `step` and `reset` in Gymnasium environments.

Unpacking a result of the wrong form fails anyway, so valid steps need no extra check.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client.system.foreign_environments import described, explain_unpacking, packages_of

_EXPECTED = {
    "step": "(observation, reward, terminated, truncated, info)",
    "reset": "(observation, info)",
}

_NUMBERS = (float, int, np.floating, np.bool_)
"""Types whose values are always valid rewards, unlike np.integer, which includes np.timedelta64."""

OBJECTIVES = (
    "; if the parts belong to several objectives, combine them into one number before the "
    "environment is served, as mo_gymnasium.wrappers.LinearReward does"
)
"""The advice in errors for rewards of several numbers."""

_OLD = (
    "gym before 0.26 has this interface: change the environment, or wrap it with the package shimmy"
)
_DM_ENV = "an environment that returns a dm_env.TimeStep must inherit from dm_env.Environment"


def inner(environment: Any) -> Any:
    """Return an environment without its wrappers, or unchanged if it has no `unwrapped`."""
    return getattr(environment, "unwrapped", environment)


def begun(environment: Any, returned: Any) -> tuple[Any, Any]:
    """Unpack the result of `reset`: the observation and the info.

    Args:
      environment: the environment.
      returned: the result of the environment's `reset`.

    Raises:
      TypeError: the result is not a pair of observation and info; an array of two numbers or a
        dict with two keys is also rejected, although Python would unpack it.
    """
    if isinstance(returned, tuple | list) and len(returned) == 2:
        observation, info = returned
        if info is None or isinstance(info, Mapping):
            return observation, info
    advice = _DM_ENV if isinstance(returned, dm_env.TimeStep) else _OLD
    raise TypeError(
        f"reset of {type(inner(environment)).__name__} returned {described(returned)}; expected "
        f"{_EXPECTED['reset']}{f'; {advice}' if returned is not None else ''}"
    )


def as_reward(environment: Any, reward: Any) -> float:
    """Convert a reward to a float, which may round it.

    Args:
      environment: the environment.
      reward: the reward returned by the environment's `step`. Any object with a `__float__`, such
        as a scalar of another library, counts as a number; a string does not.

    Raises:
      TypeError: the reward is not a number.
    """
    reason = ""
    if type(reward) is list and len(reward) == 1 and "vmas" in packages_of(environment):
        (reward,) = reward  # VMAS returns a list with the reward of each agent.
    if isinstance(reward, _NUMBERS) or _has_number(reward):
        try:
            return float(reward)
        except (TypeError, ValueError, OverflowError) as error:
            reason = f" ({error})"
    found = "a masked value" if np.ma.is_masked(reward) else described(reward) + reason
    is_several = isinstance(reward, list | tuple | np.ndarray) and getattr(reward, "ndim", 1) > 0
    raise TypeError(
        f"step of {type(inner(environment)).__name__} returned a reward that is not a number: got "
        f"{found}; expected a float{OBJECTIVES if is_several else ''}"
    )


def _has_number(value: Any) -> bool:
    """Whether a value is a single number, or a zero-dimensional array that contains one."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if kind not in "biufO" or np.ma.is_masked(value):
        return False
    return hasattr(value, "__float__") and np.ndim(value) == 0


def explain(environment: Any, method: str, error: Exception) -> None:
    """Raise TypeError if an error occurred because a method's result could not be unpacked.

    Args:
      environment: the environment.
      method: the method.
      error: the exception raised by the call, or by unpacking its result.
    """
    if method == "reset" and "unexpected keyword argument" in str(error):
        parameters = inspect.signature(inner(environment).reset).parameters
        if "seed" not in parameters:
            raise TypeError(
                f"reset of {type(inner(environment)).__name__} accepts no seed; expected "
                f"reset(seed=..., options=...); {_OLD}"
            ) from error
    expected = _EXPECTED[method]
    if "got 4" in str(error):
        expected += f" but four values ({_OLD}; {_DM_ENV})"
    explain_unpacking(error, inner(environment), method, expected, "gymnasium")
