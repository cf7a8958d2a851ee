"""Autoreset modes, which determine what follows the last step of a row's sequence.

The modes are the members of Gymnasium's `AutoresetMode`. dm_env environments behave like
NEXT_STEP.
"""

from __future__ import annotations

from collections.abc import Mapping

import dm_env

MODES = {"NEXT_STEP": "NextStep", "SAME_STEP": "SameStep", "DISABLED": "Disabled"}
"""The names of the autoreset modes, and their values in Gymnasium."""


def next_kind(mode: str) -> dm_env.StepType | None:
    """Return the type of the step that follows the end of a row's sequence.

    Args:
      mode: the name of an autoreset mode.

    Returns:
      FIRST if that step begins the next sequence and ignores its action; MID if the step that ended
      the sequence has begun the next one; None if only a Reset of the row begins one.
    """
    return _NEXT_KINDS[mode]


_NEXT_KINDS: Mapping[str, dm_env.StepType | None] = {
    "NEXT_STEP": dm_env.StepType.FIRST,
    "SAME_STEP": dm_env.StepType.MID,
    "DISABLED": None,
}
