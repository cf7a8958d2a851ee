"""The texts that name a server to launch, in the place of the address of one.

They are here and not in `launch`, so that a command that gets an address imports no more than it
needs.
"""

from __future__ import annotations

PROCESS, DOCKER, PYTHON = "process:", "docker:", "python:"
"""What the texts begin with; `launch.specs` says what follows."""

SOURCES = ("gymnasium://", "pettingzoo://", "dm_control://", "bsuite://")
"""The same for environments of other packages, which `dm-env-rpc serve` serves."""


def is_launch(text: str) -> bool:
    """Whether a text names a server to launch, and not an address."""
    return text.startswith((PROCESS, DOCKER, PYTHON, *SOURCES))
