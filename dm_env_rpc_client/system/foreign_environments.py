"""Converts environments from other libraries, and explains wrong return values.

The server converts the environments that users' factories return, and imports only the adaptors
that it needs. The conversion functions are listed here by name, and each module is imported when
the first environment from its library is converted.

The explanations are written for the author of the environment. An explanation is computed only
after a wrong value has been found, so valid steps cost nothing extra.
"""

from __future__ import annotations

import itertools
import pkgutil
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import dm_env
import numpy as np

_GYMNASIUM = "dm_env_rpc_client.adaptors.gymnasium.to_dm_env:as_environment"
"""The function that converts a Gymnasium environment to a dm_env.Environment."""

_VECTOR = "dm_env_rpc_client.adaptors.gymnasium.vector_to_dm_env:GymnasiumVectorEnvironment"
"""The class that converts Gymnasium's vector environments."""

_PETTINGZOO = "dm_env_rpc_client.adaptors.pettingzoo.game:as_game"
"""The function that converts a PettingZoo environment to a `Game`."""


_VECTOR_MODE = "dm_env_rpc_client.adaptors.gymnasium.vector_to_dm_env:autoreset_mode_of"
"""The function that returns the autoreset mode of a vector environment, given the default mode."""


class Conversion(NamedTuple):
    """The options for converting Gymnasium environments, as in `ServeOptions`."""

    autoreset_mode: str | None = None
    arrays: Any = "auto"


AS_DECLARED = Conversion()
"""The default options, which rely on what an environment declares or else on detection."""


def converted(made: Any, conversion: Conversion = AS_DECLARED) -> Any:
    """Convert a Gymnasium or PettingZoo environment so that it can be served.

    Args:
      made: the result of a factory.
      conversion: options of the conversion.

    Returns:
      A `GymnasiumEnvironment`, a `GymnasiumVectorEnvironment` or a `PettingZooGame`, or `made`
      itself if it is any other object.

    Raises:
      SpecError: the environment cannot be served, for instance because a space has no spec.
      TypeError: a Gymnasium environment has no spaces.
    """
    converter = _converter(made)
    if converter is None:
        return made
    own = {_VECTOR: conversion, _GYMNASIUM: conversion[1:]}.get(converter, ())
    return pkgutil.resolve_name(converter)(made, *own)


def check(made: Any, conversion: Conversion) -> None:
    """Raise SpecError or TypeError if a batch of environments lacks what its conversion requires.

    Args:
      made: any environment.
      conversion: options of the conversion.
    """
    if _converter(made) is _VECTOR:
        pkgutil.resolve_name(_VECTOR_MODE)(made, conversion.autoreset_mode)


def is_gymnasium(made: Any) -> bool:
    """Whether this is a Gymnasium or gym environment, but not a vector environment.

    Raises:
      TypeError: the environment has no spaces.
    """
    return _converter(made) is _GYMNASIUM


def is_foreign(kind: type) -> bool:
    """Whether a class has a base class from Gymnasium, gym or PettingZoo."""
    return bool(bases_of(kind) & (_PETTINGZOO_BASES | _GYMNASIUM_BASES))


def _converter(made: Any) -> str | None:
    if isinstance(made, dm_env.Environment | type):
        return None
    bases = bases_of(type(made))
    if bases & _PETTINGZOO_BASES:
        return _PETTINGZOO
    if _is_vector(made):
        return _VECTOR
    # By its members: environments of the older package gym have them, too.
    missing = [name for name in ("action_space", "observation_space") if not hasattr(made, name)]
    if not missing:
        return _GYMNASIUM
    if bases & _GYMNASIUM_BASES or _is_own_batch(made):
        raise TypeError(
            f"{type(made).__name__} has no {' and no '.join(missing)}; set self.action_space and "
            "self.observation_space in its __init__"
        )
    return None


def row_count(made: Any) -> int | None:
    """Return the number of rows that an environment declares, or None if undeclared."""
    for owner in and_wrapped(made):
        for name in ("num_envs", "_num_envs"):
            count = getattr(owner, name, None)
            if isinstance(count, int | np.integer):
                return int(count)
    return None


def and_wrapped(made: Any) -> Iterator[Any]:
    """Yield an environment, and the one in each of Gymnasium's wrappers, from the outside in.

    These wrappers hide the attributes of the environments that they wrap.
    """
    yield made
    while _WRAPPER in bases_of(type(made)):
        made = made.env
        yield made


def _is_vector(made: Any) -> bool:
    count = row_count(made)
    if count is None or hasattr(made, "single_action_space"):
        return count is not None
    spaces = [getattr(made, name, None) for name in ("action_space", "observation_space")]
    return set(map(str, itertools.chain(*map(_first_axes, spaces)))) == {str(count)}


def _first_axes(space: Any) -> list[int | None]:
    """Return the first dimension of each array in a space, with None for each scalar."""
    parts = getattr(space, "spaces", None)
    if parts is not None:
        own = parts.values() if isinstance(parts, Mapping) else parts
        return list(itertools.chain(*map(_first_axes, own)))
    return [next(iter(getattr(space, "shape", None) or ()), None)]


def _is_own_batch(made: Any) -> bool:
    """Whether this is a simulator's batch of environments that has no Gymnasium spaces."""
    methods = (hasattr(made, name) for name in ("reset", "step"))
    return row_count(made) is not None and all(methods) and not hasattr(made, "action_spec")


_PETTINGZOO_BASES = {("pettingzoo", "AECEnv"), ("pettingzoo", "ParallelEnv")}
_WRAPPER = ("gymnasium", "Wrapper")
_GYMNASIUM_BASES = {("gymnasium", "Env"), ("gymnasium", "VectorEnv"), ("gym", "Env")}
"""The packages and names of environment classes, for checks that must not import the packages."""


def packages_of(made: Any) -> set[str]:
    """Return the packages of the class and base classes of an environment, even a wrapped one."""
    kinds = (type(made), type(getattr(made, "unwrapped", made)))
    return {package for kind in kinds for package, _ in bases_of(kind)}


def bases_of(kind: type) -> set[tuple[str, str]]:
    """Return the packages and names of a class and of its base classes."""
    return {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}


_FIELDS = ("step_type", "reward", "discount", "observation", "first", "last")
"""The attributes of a dm_env.TimeStep that this package uses."""

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
    """Raise TypeError if a value is not a TimeStep.

    Args:
      environment: the environment or game that returned the value.
      method: the name of the method that returned the value.
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
    """Raise a more helpful TypeError if an error comes from unpacking a method's result.

    Args:
      error: the error raised while the method was called and its result was unpacked, by this
        package or by a library's wrapper.
      environment: the environment that has the method.
      method: the name of the method.
      expected: a description of the expected result, with advice.
      library: the name of the package that contains the wrappers.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    if package in (library, _OWN) and _UNPACKING.search(str(error)):
        raise TypeError(
            f"{method} of {class_name(environment)} did not return {expected}: {error}"
        ) from error


def class_name(environment: Any) -> str:
    """Return the name of the class that the environment's author wrote.

    Args:
      environment: an environment or a game. One that stands for another has that name as its
        attribute `served_name`.
    """
    return str(getattr(environment, "served_name", type(environment).__name__))


def described(value: Any) -> str:
    """Describe a value in a few words, such as "None", "a tuple of 5 values" or "a float"."""
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
