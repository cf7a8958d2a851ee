"""The former version, from the history of the checkout."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from tests.support.groups import need, skip
from tests.support.history import package_at

COMMIT = "562b5870d9a1938c3ee982b6401b3204a4dff031"


@functools.cache
def former_version() -> Path:
    """Returns a folder with the former package, which is kept between runs.

    The test is skipped where the history is not at hand: without git, in a shallow clone, and in a
    source distribution.
    """
    need("history")
    try:
        return package_at(COMMIT)
    except subprocess.CalledProcessError:
        skip("history", f"the history of this checkout does not have {COMMIT[:8]}")
