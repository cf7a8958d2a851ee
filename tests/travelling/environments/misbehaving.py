"""Environments that raise an error, or return something else."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium

from tests.travelling.environments.habits import Habit, Refused
from tests.travelling.environments.usual import Usual


class Raising(Usual):
    """Raises an error at some time in its first episode.

    Args:
      row: the row.
      error: the error.
      when: as `Usual.when`; "made" in the constructor, "begun again" in the second reset, "closed".
      rows: the rows that do.
    """

    def __init__(self, row: int, error: BaseException, when: str, rows: tuple[int, ...] = (0, 1)):
        super().__init__(row)
        self._error = error
        self._when = when if row in rows else ""
        self._has_raised = False
        if self._when == "made":
            raise error

    def inform(self) -> Any:
        is_second = self.steps == 0 and self.episode == 1
        is_now = is_second if self._when == "begun again" else self._when == self.when
        if is_now and not self._has_raised:
            self._has_raised = True
            raise self._error
        return super().inform()

    def close(self) -> None:
        if self._when == "closed":
            raise self._error


class Returning(Usual):
    """Returns something else from a method."""

    def __init__(self, row: int, method: str, value: Any):
        super().__init__(row)
        self._method, self._value = method, value

    def reset(self, **kwargs: Any) -> Any:
        found = super().reset(**kwargs)
        return self._value if self._method == "reset" and self.episode == 0 else found

    def step(self, action: Any) -> Any:
        found = super().step(action)
        return self._value if self._method == "step" and self.when == "step" else found


def _raising(error: BaseException, when: str, calls: str = "RsssrsRs", **rows: Any) -> Habit:
    return Habit(functools.partial(Raising, error=error, when=when, **rows), calls=calls)


def _returning(method: str, value: Any) -> Habit:
    refused = Refused((f"{method} of Returning",))
    return Habit(
        functools.partial(Returning, method=method, value=value),
        {0: refused} if method == "reset" else {1: refused, 2: refused},
        "RRsssrs" if method == "reset" else "RsssrsRs",
    )


HABITS: dict[str, Habit] = {
    "raises when it is made": _raising(OSError("no device"), "made"),
    "refuses its settings": _raising(ValueError("row is too large"), "made"),
    "raises in reset": _raising(OSError("no device"), "reset", "RRsssrs"),
    "raises in the next reset": _raising(OSError("no device"), "begun again", "RsssrrsRs"),
    "raises in a step": _raising(ZeroDivisionError("division by zero"), "step"),
    "raises in the last step": _raising(KeyError("gear"), "end", "RsssRsRs"),
    "raises a ValueError": _raising(ValueError("bad"), "step"),
    "raises without a text": _raising(RuntimeError(), "step"),
    "raises StopIteration": _raising(StopIteration("over"), "step"),
    "raises ResetNeeded": _raising(gymnasium.error.ResetNeeded("reset me"), "step"),
    "raises in one row": _raising(OSError("one row"), "step", rows=(1,)),
    "raises in the other row": _raising(OSError("one row"), "step", rows=(0,)),
    "raises in close": _raising(OSError("stuck"), "closed"),
    "returns four values": _returning("step", (0, 0.0, False, {})),
    "returns an observation alone": _returning("reset", 0),
    "returns None": _returning("step", None),
}  # fmt: skip
"""By name."""
