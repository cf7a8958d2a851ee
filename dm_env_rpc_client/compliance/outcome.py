"""The outcomes of a check, and the exceptions by which it reports them."""

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
    """The server violated a clause of the protocol.

    Attributes:
      expected: the answer that the clause demands.
      sent: the last requests; "" if nothing was sent.
      received: the answer that came.
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
    """The server lacks an optional feature; the message says which."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
      name: the check.
      outcome: how it ended.
      document: the protocol document of the clause.
      heading: the heading of the clause in the document.
      clause: the content of the clause in other words.
      reason: why the check was skipped; "" otherwise.
      sent: the last requests if the check failed; "" otherwise.
      received: the answer if the check failed; "" otherwise.
      expected: the answer that the clause demands if the check failed; "" otherwise.
      seconds: the duration.
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
        """Returns the result as values of JSON."""
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
