"""What a method of an environment has returned by mistake, explained to its author.

Called when the value has already failed to be what it should be, so that steps cost nothing more.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np

_FIELDS = ("step_type", "reward", "discount", "observation", "first", "last")
"""The attributes of a dm_env.TimeStep that are used."""

_LISTED_KEYS = 8

_OWN = __name__.partition(".")[0]

_UNPACKING = re.compile(r"values to unpack \(expected|cannot unpack non-iterable")

INHERIT_FROM_GYMNASIUM = (
    "inherit from gymnasium.Env, with action_space and observation_space, and the environment is "
    "served as one of Gymnasium"
)

_RETURN = {
    "reset": "return dm_env.restart(observation)",
    "step": (
        "return dm_env.transition(reward, observation), or dm_env.termination or dm_env.truncation "
        "of these where a sequence ends"
    ),
}


def check_time_step(environment: Any, method: str, returned: Any) -> None:
    """Raises TypeError if a value is no TimeStep.

    Args:
      environment: what returned it, an environment or a game.
      method: its method.
      returned: the value.
    """
    if all(hasattr(returned, name) for name in _FIELDS):
        return
    # The method `timestep` of a game returns what `step` of an environment does.
    advice = _RETURN.get(method, _RETURN["step"])
    counts = (2,) if method == "reset" else (4, 5)
    if type(returned) is tuple and len(returned) in counts and isinstance(returned[-1], Mapping):
        advice = f"this looks like Gymnasium's interface: {INHERIT_FROM_GYMNASIUM}"
    raise TypeError(
        f"{method} of {class_name(environment)} returned {described(returned)}; expected a "
        f"dm_env.TimeStep: {advice}"
    ) from None


def explain_unpacking(
    error: Exception, environment: Any, method: str, expected: str, library: str
) -> None:
    """Raises TypeError if an error is that of unpacking what a method returned.

    Args:
      error: what calling the method and unpacking raised, here or in a wrapper of a library.
      environment: whose method it is.
      method: the method.
      expected: what it should return, and advice.
      library: the package of the wrappers.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    if package in (library, _OWN) and _UNPACKING.search(str(error)):
        raise TypeError(
            f"{method} of {class_name(environment)} did not return {expected}: {error}"
        ) from error


def class_name(environment: Any) -> str:
    """Returns the name of the class that the author of an environment has written.

    Args:
      environment: an environment or a game. One that stands for another has that name as its
        attribute `served_name`.
    """
    return str(getattr(environment, "served_name", type(environment).__name__))


def described(value: Any) -> str:
    """Returns what a value is, in a few words: "None", "a tuple of 5 values", "a float"."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, dm_env.TimeStep):
        return "a TimeStep"
    if type(value) is tuple:
        return f"a tuple of {len(value)} value{'s' * (len(value) != 1)}"
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} {list(value.shape)}"
    if type(value) is dict:
        keys = ", ".join(map(repr, list(value)[:_LISTED_KEYS]))
        more = ", ..." * (len(value) > _LISTED_KEYS)
        return f"a dict with the key{'s' * (len(value) != 1)} {keys}{more}" if value else "{}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
