"""A check: a function, and the clause of the protocol that it tests."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from dm_env_rpc_client.compliance.outcome import ONE, Takes
from dm_env_rpc_client.compliance.trial import Trial


def _no_test(trial: Trial) -> None:
    """Test nothing with a trial: a check has it until it is called with its own function."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One row of the table of checks. Without its function it is the decorator of the function.

    Attributes:
      document: the protocol document of the clause.
      heading: the heading of the clause in the document.
      clause: the content of the clause in other words.
      leniency: why a violation is a warning: what keeps a client that follows the documents from
        noticing it. "" if a violation is an error.
      needs: the checks without which this one says nothing; it is skipped if one of them finds
        something, or one that they need.
      explained_by: the checks of the same rule in a simpler form; if one of them finds something,
        a violation is not reported a second time.
      otherwise: what is true of the server if the statement does not hold, as the reason with
        which the checks that need it are skipped.
      tells: the attribute of `Facts` that is True once the check has passed; "" for none.
      takes: the clients that it takes; it is skipped on servers that do not take that many.
      function: the test; raises ViolationError if the statement does not hold, and
        NotOfferedError if the server does not have the tested feature.
    """

    document: str
    heading: str
    clause: str
    leniency: str = ""
    needs: tuple[Check, ...] = ()
    explained_by: tuple[Check, ...] = ()
    otherwise: str = ""
    tells: str = ""
    takes: Takes = ONE
    function: Callable[[Trial], None] = _no_test

    @property
    def name(self) -> str:
        """The statement that must hold: the name of the function."""
        return self.function.__name__

    def __call__(self, function: Callable[[Trial], None]) -> Check:
        """Return the check with a function."""
        return dataclasses.replace(self, function=function)


overview = functools.partial(Check, "protocol overview")
"""Makes a function the check of a clause in the protocol overview."""

reference = functools.partial(Check, "protocol reference")
"""Makes a function the check of a clause in the protocol reference."""
