"""How a check ends, and how it says so from within."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

__all__ = ["NotOfferedError", "Outcome", "Result", "ViolationError"]


class Outcome(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class ViolationError(Exception):
    """The server did what a clause of the protocol does not allow.

    Attributes:
      expected: what should have come back.
      sent: what was sent last; "" where nothing was.
      received: what came back.
    """

    def __init__(self, expected: str, sent: str = "", received: str = ""):
        super().__init__(expected, sent, received)
        self.expected = expected
        self.sent = sent
        self.received = received

    def __str__(self) -> str:
        return (
            f"sent: {self.sent or 'nothing'}\nreceived: {self.received or 'nothing'}\n"
            f"expected: {self.expected}"
        )


class NotOfferedError(Exception):
    """The server lacks something that the protocol leaves to it; says what."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one check.

    Attributes:
      name: the check.
      outcome: how it ended.
      document: the protocol document that the clause is from.
      heading: the heading in it.
      clause: what the document says, in other words.
      reason: why it was skipped; "" otherwise.
      sent: what was sent when it failed; "" otherwise.
      received: what came back; "" otherwise.
      expected: what should have; "" otherwise.
      seconds: how long it took.
    """

    name: str
    outcome: Outcome
    document: str
    heading: str
    clause: str
    reason: str = ""
    sent: str = ""
    received: str = ""
    expected: str = ""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The result as JSON has it."""
        return {**dataclasses.asdict(self), "outcome": self.outcome.value}

    def __str__(self) -> str:
        if self.outcome is Outcome.PASSED:
            return f"{self.name}: passed"
        if self.outcome is Outcome.SKIPPED:
            return f"{self.name}: skipped: {self.reason}"
        return (
            f"{self.name}: failed\n"
            f"  clause: {self.clause} ({self.heading!r} in the {self.document})\n"
            f"  sent: {self.sent or 'nothing'}\n"
            f"  received: {self.received or 'nothing'}\n"
            f"  expected: {self.expected}"
        )
