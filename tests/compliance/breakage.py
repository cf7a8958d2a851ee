"""The table of broken servers, and how they get into it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from dm_env_rpc_client.compliance import Options
from tests.compliance.playground import Session, Worlds

BROKEN: dict[str, tuple[str, type[Session]]] = {}
"""What is wrong, as the class says -> the check that is to notice, and the server."""

Class = TypeVar("Class", bound="type[Session | Worlds]")


OPTIONS = Options(
    invalid_create_settings={"unknown": 1},
    invalid_join_settings={"unknown": 1},
    invalid_reset_settings={"unknown": 1},
    timeout=100.0,  # Longer than any answer takes on a busy machine.
    quiet_seconds=0.05,
)
"""How the playground is checked, and its subclasses."""


def session_of(worlds: type[Worlds]) -> type[Session]:
    """A server that has such worlds."""
    return type("Broken", (Session,), {"worlds_class": worlds})


def breaks(check: str) -> Callable[[Class], Class]:
    def add(broken: Class) -> Class:
        wrong = " ".join(re.findall("[A-Z][a-z]*|[0-9]+", broken.__name__)).lower()
        if issubclass(broken, Session):
            BROKEN[wrong] = (check, broken)
        else:
            BROKEN[wrong] = (check, session_of(broken))
        return broken

    return add
