"""A check: a function, and the clause of the protocol that it tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from dm_env_rpc_client.compliance.facts import Takes
from dm_env_rpc_client.compliance.trial import Trial

__all__ = ["Check", "overview", "reference"]


class Check(NamedTuple):
    """One row of the table of checks.

    Attributes:
      name: the statement that must hold.
      document: the protocol document of the clause.
      heading: the heading of the clause in the document.
      clause: the content of the clause in other words.
      function: the test; raises ViolationError if the statement does not hold, and
        NotOfferedError if the server does not have the tested feature.
      leniency: why a violation is a warning: what keeps a client that follows the documents from
        noticing it. "" if a violation is an error.
      needs: the checks without which this one says nothing; it is skipped if one of them finds
        something.
      otherwise: what is true of the server if the statement does not hold, as the reason with
        which the checks that need it are skipped.
      takes: the clients that it takes; it is skipped on servers that do not take that many.
    """

    name: str
    document: str
    heading: str
    clause: str
    function: Callable[[Trial], None]
    leniency: str = ""
    needs: tuple[Check, ...] = ()
    otherwise: str = ""
    takes: Takes = Takes()


_ONE = Takes()

_Decorator = Callable[[Callable[[Trial], None]], Check]


def _check(
    document: str,
    heading: str,
    clause: str,
    *,
    leniency: str = "",
    needs: tuple[Check, ...] = (),
    otherwise: str = "",
    takes: Takes = _ONE,
) -> _Decorator:
    return lambda function: Check(
        function.__name__, document, heading, clause, function, leniency, needs, otherwise, takes
    )


overview = functools.partial(_check, "protocol overview")
"""Makes a function the check of a clause in the protocol overview; see `Check`."""

reference = functools.partial(_check, "protocol reference")
"""Makes a function the check of a clause in the protocol reference; see `Check`."""
