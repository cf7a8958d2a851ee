"""The table of broken servers, and how they get into it."""

from __future__ import annotations

from typing import Any

from tests.compliance.playground import (
    Session,
    Worlds,
)

BROKEN: dict[str, tuple[str, type[Session]]] = {}
"""What is wrong -> the check that is to notice, and the server."""


def breaks(wrong: str, check: str) -> Any:
    def add(session_class: type[Session]) -> type[Session]:
        assert wrong not in BROKEN
        BROKEN[wrong] = (check, session_class)
        return session_class

    return add


def breaks_worlds(wrong: str, check: str) -> Any:
    def add(worlds: type[Worlds]) -> type[Worlds]:
        breaks(wrong, check)(type("Broken", (Session,), {"worlds_class": worlds}))
        return worlds

    return add
