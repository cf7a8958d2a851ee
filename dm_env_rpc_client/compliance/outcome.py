"""Known facts about a server, and the outcomes and findings of checks."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

from dm_env_rpc_client.plain_text import one_line, printable


class Takes(NamedTuple):
    """The numbers of clients that a check needs at once, not counting companions.

    Attributes:
      connections: the number of connections.
      joined: the number of connections that join a world.
      agents: the number of connections that join the same world.
    """

    connections: int = 1
    joined: int = 1
    agents: int = 1


ONE = Takes()


class Facts(NamedTuple):
    """Facts about a server: the choices it makes and the rules it breaks.

    The flags default to the worst case, because nothing is known about the server at first.

    Attributes:
      connections: the number of simultaneous connections; 0 if no limit is known.
      one_client: why every request of a second client is refused; "" if not refused or unknown.
      one_agent: why a second client cannot join the first one's world; "" if it can or if unknown.
      one_joined: why a second client cannot join its own world; "" if it can or if unknown.
      takes_resets: whether a Reset is carried out.
      survives_errors: whether the stream stays open after an error.
      errors_are_no_ops: whether a failed request changes nothing.
      ignores_first_actions: whether the first step of a sequence ignores unknown actions.
      refuses_unknown_actions: whether a step in a sequence refuses unknown actions.
      refuses_empty_requests: whether a request without a payload, such as one of another dialect,
        gets an error.
      answers_leave: whether a LeaveWorld on a new connection is answered.
    """

    connections: int = 0
    one_client: str = ""
    one_agent: str = ""
    one_joined: str = ""
    takes_resets: bool = False
    survives_errors: bool = False
    errors_are_no_ops: bool = False
    ignores_first_actions: bool = False
    refuses_unknown_actions: bool = False
    refuses_empty_requests: bool = False
    answers_leave: bool = False

    def lack(self, takes: Takes, companions: int) -> str | None:
        """Return why the server cannot accept the clients of a check, or None if it can.

        Args:
          takes: the clients.
          companions: the number of additional agents that each world needs.
        """
        needed = takes.connections + companions * (takes.joined - takes.agents + 1)
        if self.one_client and needed > 1:
            return f"the server accepts only one client at a time: {self.one_client}"
        if self.connections and needed > self.connections:
            return (
                f"this check needs {needed} simultaneous connections, and the server accepts "
                f"{self.connections}"
            )
        if takes.agents > 1 and self.one_agent:
            return f"a world accepts only one agent: {self.one_agent}"
        if takes.joined > 1 and self.one_joined:
            return f"only one client can join at a time: {self.one_joined}"
        return None


_SUMMARY = 120
"""The maximum length, in characters, of each of the two answers in a summary."""


class Outcome(enum.Enum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    """A client that follows the protocol gets a wrong answer or no answer."""
    WARNED = "warned"
    """The server breaks a rule or ignores advice, but conforming clients still work."""
    SKIPPED = "skipped"


class ComplianceWarning(UserWarning):
    """The category of the pytest warnings that report findings of level "warning"."""


class ViolationError(Exception):
    """The server violated a clause of the protocol.

    Attributes:
      expected: the answer that the clause demands.
      sent: the last requests; "" if nothing was sent.
      received: the received answer.
      is_unanswered: whether no answer came. A missing answer is an error even in a check that
        reports other violations as warnings: each request has one answer ("Protocol overview").
      concerns: the names of the checks that test the violated clause, if other checks can
        encounter the violation too. If one of these checks also has a finding, it reports the
        violation.
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
    """The server lacks a feature that the check requires; the message describes the feature."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
      name: the name of the check.
      outcome: how the check ended.
      document: the protocol document of the clause.
      heading: the heading of the clause in the document.
      clause: the clause in other words.
      reason: why the check was skipped, or why its finding is a warning; "" otherwise.
      sent: the last requests if the check failed or warned; "" otherwise.
      received: the answer if the check failed or warned; "" otherwise.
      expected: the answer that the clause demands if the check failed or warned; "" otherwise.
      seconds: the duration of the check, in seconds.
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
        """Whether the check failed or gave a warning."""
        return self.outcome in (Outcome.FAILED, Outcome.WARNED)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**dataclasses.asdict(self), "outcome": self.outcome.value}

    @property
    def summary(self) -> str:
        """The received and the expected answer of a finding, as one line of text."""
        received = one_line(f"got {self.received or 'nothing'}", _SUMMARY)
        return f"{received}; expected {one_line(self.expected, _SUMMARY)}"

    def as_report(self, before: str = "") -> str:
        """Return the finding as lines of text that begin with the received message.

        Args:
          before: the beginning of the first line.
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
