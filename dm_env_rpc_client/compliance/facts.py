"""What the first checks have found out about a server, on which the later ones depend."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Facts"]


class Facts(NamedTuple):
    """How the server behaves where the documents leave a choice, or where it breaks a rule.

    The defaults assume nothing good, so they suit a server of which nothing is known yet.

    Attributes:
      connections: how many connections it accepts at the same time; 0 if no limit is known.
      survives_errors: whether the stream stays open after an error.
      errors_are_no_ops: whether a request that got an error has changed nothing.
      ignores_first_actions: whether the first step of a sequence ignores unknown actions.
      refuses_unknown_actions: whether a step in a sequence refuses unknown actions.
      refuses_empty_requests: whether a request without a payload gets an error, as one of another
        dialect does.
    """

    connections: int = 0
    survives_errors: bool = False
    errors_are_no_ops: bool = False
    ignores_first_actions: bool = False
    refuses_unknown_actions: bool = False
    refuses_empty_requests: bool = False
