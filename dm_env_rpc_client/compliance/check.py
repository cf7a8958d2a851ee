"""A check: a function, and the clause of the protocol that it tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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
    """

    name: str
    document: str
    heading: str
    clause: str
    function: Callable[[Trial], None]
    leniency: str = ""
    needs: tuple[Check, ...] = ()
    otherwise: str = ""


_Decorator = Callable[[Callable[[Trial], None]], Check]


def overview(
    heading: str,
    clause: str,
    *,
    leniency: str = "",
    needs: tuple[Check, ...] = (),
    otherwise: str = "",
) -> _Decorator:
    """Makes a function the check of a clause in the protocol overview; see `Check`."""
    return lambda function: Check(
        function.__name__,
        "protocol overview",
        heading,
        clause,
        function,
        leniency,
        needs,
        otherwise,
    )


def reference(
    heading: str,
    clause: str,
    *,
    leniency: str = "",
    needs: tuple[Check, ...] = (),
    otherwise: str = "",
) -> _Decorator:
    """Makes a function the check of a clause in the protocol reference; see `Check`."""
    return lambda function: Check(
        function.__name__,
        "protocol reference",
        heading,
        clause,
        function,
        leniency,
        needs,
        otherwise,
    )
