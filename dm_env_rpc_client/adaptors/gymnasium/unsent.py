"""What becomes of values that `value_json` has no form for.

A value that a caller passes is refused, because it must not arrive as another one. A value that an
environment returns is replaced by its `repr`, so that a single odd info does not end an episode,
and logged once.
"""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.foreign_environments import described
from dm_env_rpc_client.tensors.nesting import text_of_deep

_SENT = (
    "numbers, strings, bytes, arrays, dates without a time zone, or lists, tuples, sets and dicts "
    "of these"
)

_MOST_LOGGED = 100
"""The maximum number of log lines. The keys are the environments' own and can be any number."""

_log = logging.getLogger("dm_env_rpc_client.server")

# The names and types that were logged.
_logged: set[tuple[str, str]] = set()


class Given(str):
    """The name of a value that a caller passed, in contrast to one that an environment returned."""

    __slots__ = ()


Where: TypeAlias = str | tuple["Where", Any]
"""The name of a value, or the place of its container and its key there. If the name is empty, the
keys of the container are names."""


def replaced(value: Any, where: Where, is_deep: bool = False) -> str:
    """Return the `repr` of a value that has no form in JSON, and log it once for each key.

    Args:
      value: the value.
      where: the place of the value.
      is_deep: whether the value has no form because it is nested too deeply.

    Raises:
      SpecError: a caller passed the value, or it contains itself.
    """
    text = text_of_deep(value)
    keys: list[str] = []
    while isinstance(where, tuple):
        where, key = where
        keys.append(f"[{arguments.shown(key)}]" if where else str(key))
    keys.append(where)
    keys.reverse()
    name, kind = "".join(keys), type(value).__name__
    problem, advice = f"is {described(value)}", f"only {_SENT}"
    if is_deep:
        problem, advice = f"is a {kind}, nested too deeply", "fewer levels"
    if isinstance(where, Given):
        raise SpecError(f"{name} {problem}, which cannot be sent; pass {advice}")
    # By the name and the outermost key only, since there can be any number of keys below it.
    once = "".join(keys[: 2 if where else 3]), kind
    if once not in _logged and len(_logged) < _MOST_LOGGED:
        _logged.add(once)
        _log.warning(
            "%s %s, which clients receive as a string, its repr; return %s (logged once)",
            name,
            problem,
            advice,
        )
    return text
