"""Runs a session: `python -m tests.sessions SESSION [ARGUMENTS]`; `--help` lists the sessions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

SESSIONS = {
    "foreign": "the tests that need other projects' packages, or a module beside these packages",
    "pythons": "the core tests on every Python, with the newest and the lowest dependencies",
    "fresh": "README's commands in a Debian with nothing installed",
    "release": "builds the archives, checks them, and lists what is missing for a release",
}


def main(arguments: Sequence[str]) -> int:
    """Runs the named session with the other arguments; returns its exit code."""
    if arguments and arguments[0] in SESSIONS:
        session = importlib.import_module(f"tests.sessions.{arguments[0]}")
        code: int = session.main(arguments[1:])
        return code
    lines = [f"  {name:8} {what}" for name, what in SESSIONS.items()]
    text = "\n".join(["usage: python -m tests.sessions SESSION [ARGUMENTS]", "", *lines])
    if list(arguments) in (["-h"], ["--help"]):
        print(text)
        return 0
    print(f"{text}\n\nexpected a session, got {' '.join(arguments) or 'none'}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
