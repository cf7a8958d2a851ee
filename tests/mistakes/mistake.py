"""One mistake of a user, and what its error has to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Mistake(NamedTuple):
    """A call that fails.

    Attributes:
      call: what the user does; it is called with the address of a server of Catch, or whatever its
        test passes.
      error: the class of the error.
      where: the argument or the method, as the text names it.
      given: what was given, as the text shows it.
      advice: what the text says to do, or what was expected.
    """

    call: Callable[..., Any]
    error: type[Exception]
    where: str
    given: str
    advice: str

    def check(self, *arguments: object) -> None:
        """Makes the mistake, and compares the text of the error."""
        with pytest.raises(self.error) as caught:
            self.call(*arguments)
        text = str(caught.value)
        for part in (self.where, self.given, self.advice):
            assert part in text, f"{part!r} is missing from {text!r}"
