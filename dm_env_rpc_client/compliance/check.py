"""A check: a function, and the clause of the protocol that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dm_env_rpc_client.compliance.trial import Trial

__all__ = ["Check", "overview", "reference"]


class Check(NamedTuple):
    """One row of the table of checks.

    Attributes:
      name: what must be so.
      document: the protocol document that the clause is from.
      heading: the heading in it.
      clause: what it says, in other words.
      function: tries it; raises ViolationError where it is not so, NotOfferedError where the server
        lacks what it is about.
    """

    name: str
    document: str
    heading: str
    clause: str
    function: Callable[[Trial], None]


def overview(heading: str, clause: str) -> Callable[[Callable[[Trial], None]], Check]:
    """Makes a function the check of a clause in the protocol overview."""
    return lambda function: Check(function.__name__, "protocol overview", heading, clause, function)


def reference(heading: str, clause: str) -> Callable[[Callable[[Trial], None]], Check]:
    """Makes a function the check of a clause in the protocol reference."""
    return lambda function: Check(
        function.__name__, "protocol reference", heading, clause, function
    )
