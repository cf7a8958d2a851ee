"""The table of broken servers, and how they get into it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from tests.compliance.playground import Session, Worlds

BROKEN: dict[str, tuple[str, type[Session]]] = {}
"""What is wrong, as the class says -> the check that is to notice, and the server."""

Class = TypeVar("Class", bound="type[Session | Worlds]")


def breaks(check: str) -> Callable[[Class], Class]:
    def add(broken: Class) -> Class:
        wrong = " ".join(re.findall("[A-Z][a-z]*|[0-9]+", broken.__name__)).lower()
        if issubclass(broken, Session):
            BROKEN[wrong] = (check, broken)
        else:
            BROKEN[wrong] = (check, type("Broken", (Session,), {"worlds_class": broken}))
        return broken

    return add
