"""The specs of environments and games, and what their authors return in the place of specs."""

from __future__ import annotations

from typing import Any, TypeAlias

from dm_env.specs import Array

from dm_env_rpc_client.system.wrong_returns import (
    INHERIT_FROM_GYMNASIUM,
    class_name,
    described,
)
from dm_env_rpc_client.tensors import nesting, structures

Specs: TypeAlias = tuple[Any, Any, Any, Any]
"""Of the actions, observations, reward and discount, nested or not; None for none."""

METHODS = ("action_spec", "observation_spec", "reward_spec", "discount_spec")

_USED = ("name", "shape", "dtype")
"""The attributes of a spec. An environment for the server in one file has specs of that file."""


def specs_of(hosted: Any, *player: Any) -> Specs:
    """Returns the specs of an environment, or of a player of a game.

    Args:
      hosted: the environment or the game.
      *player: the player.

    Raises:
      TypeError: a method returned no specs.
    """
    found = []
    for method in METHODS:
        structure = getattr(hosted, method)(*player)
        if not isinstance(structure, Array):
            _check(structure, hosted, method)
        found.append(structure)
    action, observation, reward, discount = found
    return action, observation, reward, discount


def _check(structure: Any, hosted: Any, method: str) -> None:
    if structure is None:
        return
    where = f"{method} of {class_name(hosted)}"
    if _is_space(structure):
        raise _error(f"{where} returned {structure}", structure)
    for path, leaf in structures.leaves_with_path(structure):
        if isinstance(leaf, Array) or all(hasattr(leaf, name) for name in _USED):
            continue
        found = str(leaf) if _is_space(leaf) else described(leaf)
        if not path:
            raise _error(f"{where} returned {found}", leaf)
        name = nesting.SEPARATOR.join(map(str, path))
        raise _error(f"{where} returned {described(structure)}, in which {name!r} is {found}", leaf)


def _error(text: str, found: Any) -> TypeError:
    advice = "return them, such as dm_env.specs.Array(shape, dtype), or nested dicts of them"
    if _is_space(found):
        advice = f"{INHERIT_FROM_GYMNASIUM}; or {advice}"
    return TypeError(f"{text}; expected specs of dm_env: {advice}")


def _is_space(value: Any) -> bool:
    """Whether this is a space of Gymnasium or gym, by its members."""
    return hasattr(value, "sample") and hasattr(value, "contains")
