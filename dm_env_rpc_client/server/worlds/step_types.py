"""Which type of TimeStep may follow which: the rules for environments, rows of batches and games.

A sequence begins with the TimeStep that `reset` returns. It goes on with MID ones, and ends with a
LAST one. `.last()` of a TimeStep compares numbers, so a type may also be such a number.
"""

from __future__ import annotations

import contextlib
from typing import Any

import dm_env

from dm_env_rpc_client.system.wrong_returns import class_name

_FIRST, _, _LAST = dm_env.StepType


def step_type_of(hosted: Any, method: str, timestep: dm_env.TimeStep) -> dm_env.StepType:
    """Returns the type of a TimeStep.

    Args:
      hosted: what returned it, an environment or a game.
      method: its method.
      timestep: the TimeStep.

    Raises:
      RuntimeError: it has none of dm_env's types.
    """
    kind: Any = timestep.step_type
    if type(kind) is dm_env.StepType:
        return kind
    known = None
    with contextlib.suppress(TypeError, ValueError):  # An array has several elements.
        known = next((each for each in dm_env.StepType if kind == each), None)
    if known is not None:
        return known
    raise RuntimeError(
        f"{method} of {class_name(hosted)} returned a TimeStep of the type {kind!r}; expected "
        "dm_env.StepType.FIRST (0), MID (1) or LAST (2)"
    )


def begun(environment: Any, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
    """Returns the first TimeStep of a sequence: a FIRST one, without a reward and a discount.

    Args:
      environment: the environment.
      timestep: what its `reset` returned.

    Raises:
      RuntimeError: it is LAST, or of no type of dm_env.
    """
    if step_type_of(environment, "reset", timestep) is _LAST:
        raise RuntimeError(
            f"reset of {class_name(environment)} returned a LAST TimeStep; a sequence begins with "
            "a FIRST one: return dm_env.restart(observation)"
        )
    return dm_env.restart(timestep.observation)


def next_step_type(environment: Any, timestep: dm_env.TimeStep) -> dm_env.StepType:
    """Returns the type of a TimeStep in the middle of a sequence: MID or LAST.

    Args:
      environment: the environment.
      timestep: what its `step` returned.

    Raises:
      RuntimeError: it is FIRST, or of no type of dm_env.
    """
    kind = step_type_of(environment, "step", timestep)
    if kind is _FIRST:
        raise RuntimeError(
            f"step of {class_name(environment)} returned a FIRST step in the middle of a sequence; "
            "end it with dm_env.termination or dm_env.truncation, and begin the next in reset"
        )
    return kind
