"""The class of a check, which combines a protocol clause with the function that tests it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from dm_env_rpc_client.compliance.outcome import ONE, Takes
from dm_env_rpc_client.compliance.trial import Trial


def _no_test(trial: Trial) -> None:
    """Do nothing with `trial`; a placeholder for the test function of a check."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A check; before it has a test function, it serves as a decorator that adds one.

    Attributes:
      document: the protocol document of the clause.
      heading: the heading of the clause in the document.
      clause: the clause in other words.
      leniency: why a violation is only a warning, that is, why a client that follows the documents
        does not notice it; "" if a violation is an error.
      needs: the prerequisite checks; this check is skipped after a finding in one of them, or in
        one of their own prerequisites.
      explained_by: simpler checks of the same rule; if one of them has a finding, a violation is
        not reported a second time.
      otherwise: the consequence of a violation, given as the reason for skipping the checks that
        need this one.
      tells: the attribute of `Facts` that a passed check sets to True; "" for none.
      takes: the clients that the check needs at once; it is skipped on servers that accept fewer.
      function: the test; raises ViolationError if the statement does not hold, and
        NotOfferedError if the server lacks the tested feature.
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
        """The name of the test function, which states what must hold."""
        return self.function.__name__

    def __call__(self, function: Callable[[Trial], None]) -> Check:
        """Return a copy of this check with a test function."""
        return dataclasses.replace(self, function=function)


overview = functools.partial(Check, "protocol overview")
"""Creates a decorator for a check of a clause in the protocol overview."""

reference = functools.partial(Check, "protocol reference")
"""Creates a decorator for a check of a clause in the protocol reference."""
