"""The outcomes of a check, and the exceptions by which it reports them."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from dm_env_rpc_client.plain_text import one_line, printable

_SUMMARY = 120
"""The most characters of an answer, and of what was expected, in a summary."""


class Outcome(enum.Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    """A client that follows the documents gets a wrong answer, or none."""
    WARNED = "warned"
    """The documents demand or advise otherwise, and a client that follows them does not notice."""
    SKIPPED = "skipped"


class ComplianceWarning(UserWarning):
    """A finding that is a warning, under pytest."""


class ViolationError(Exception):
    """The server violated a clause of the protocol.

    Attributes:
      expected: the answer that the clause demands.
      sent: the last requests; "" if nothing was sent.
      received: the answer that came.
      is_unanswered: whether no answer came. That is an error also of a check whose violations are
        warnings: each request has one answer ("Protocol overview").
      concerns: the names of the checks that test the violated clause, if any check may come across
        the violation. One of them reports it, if it finds something too.
    """

    def __init__(
        self,
        expected: str,
        sent: str = "",
        received: str = "",
        is_unanswered: bool = False,
        concerns: tuple[str, ...] = (),
    ):
        super().__init__(expected, sent, received, is_unanswered, concerns)
        self.expected = expected
        self.sent = sent
        self.received = received
        self.is_unanswered = is_unanswered
        self.concerns = concerns


class NotOfferedError(Exception):
    """The server lacks what the check needs; the message says what."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
      name: the check.
      outcome: how it ended.
      document: the protocol document of the clause.
      heading: the heading of the clause in the document.
      clause: the content of the clause in other words.
      reason: why the check was skipped, or why its finding is a warning; "" otherwise.
      sent: the last requests if the check failed or warned; "" otherwise.
      received: the answer if the check failed or warned; "" otherwise.
      expected: the answer that the clause demands if the check failed or warned; "" otherwise.
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

    @property
    def is_finding(self) -> bool:
        """Whether the check failed or warned."""
        return self.outcome in (Outcome.FAILED, Outcome.WARNED)

    def as_json(self) -> dict[str, Any]:
        """Returns the result as values of JSON."""
        return {**dataclasses.asdict(self), "outcome": self.outcome.value}

    @property
    def summary(self) -> str:
        """What was received and what was expected if the check failed or warned, in one line."""
        received = one_line(f"got {self.received or 'nothing'}", _SUMMARY)
        return f"{received}; expected {one_line(self.expected, _SUMMARY)}"

    def as_report(self, before: str = "") -> str:
        """Returns what the check found, in lines of which the first one says what was received.

        Args:
          before: text before it.
        """
        head = f"{before}got {self.received or 'nothing'}"
        return printable("\n".join([head, *self._details(f"expected: {self.expected}")]))

    def _details(self, *more: str) -> list[str]:
        details = [
            f"clause: {self.clause} ({self.heading!r} in the {self.document})",
            f"sent: {self.sent or 'nothing'}",
            *more,
        ]
        if self.reason:
            details.append(f"a warning, because {self.reason}")
        return [f"  {line}" for line in details]

    def __str__(self) -> str:
        if self.outcome is Outcome.PASSED:
            return f"{self.name}: passed"
        if self.outcome is Outcome.SKIPPED:
            return printable(f"{self.name}: skipped: {self.reason}")
        received = f"received: {self.received or 'nothing'}"
        head = f"{self.name}: {self.outcome.value}"
        return printable("\n".join([head, *self._details(received, f"expected: {self.expected}")]))
