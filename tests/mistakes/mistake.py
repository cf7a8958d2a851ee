"""One mistake of a user, and what its error has to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dm_env_rpc_client import SpecError

# What is expected, as the texts say it.
SECONDS = "a number of seconds, or None for no limit"
NEVER = "a Restart, True for Restart(), or None or False for no restarts"
VALUES = "must be a mapping of names to values"
INT = "must be an integer of at least 1"
FLAG = "must be True or False"
LISTEN = "an address to listen on"
KEYS = "did you mean credentials=Tls(cert='server.crt', key='server.key')?"
FOR_ALL = "must be finite and more than 0, or None for no limit"
FROM_0 = "must be finite and at least 0"


class Mistake(NamedTuple):
    """A call that fails.

    Attributes:
      call: what the user does; it is called with the address of a server of Catch, or whatever its
        test passes.
      where: the argument or the method, as the text names it.
      given: what was given, as the text shows it.
      advice: what the text says to do, or what was expected.
      error: the class of the error.
    """

    call: Callable[..., Any]
    where: str
    given: str
    advice: str
    error: type[Exception] = SpecError

    def check(self, *arguments: object) -> None:
        """Makes the mistake, and compares the text of the error."""
        with pytest.raises(self.error) as caught:
            self.call(*arguments)
        text = str(caught.value)
        for part in (self.where, self.given, self.advice):
            assert part in text, f"{part!r} is missing from {text!r}"


M = Mistake
"""In long tables."""
