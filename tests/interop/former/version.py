"""The former version, from the history of the checkout."""

from __future__ import annotations

import functools
import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.support.groups import need, skip
from tests.support.programs import ROOT

__all__ = ["COMMIT", "former_version"]

COMMIT = "562b5870d9a1938c3ee982b6401b3204a4dff031"

_PACKAGE = "dm_env_rpc_client"


@functools.cache
def former_version() -> Path:
    """Returns a folder with the former package, which is kept between runs.

    The test is skipped where the history is not at hand: without git, in a shallow clone, and in a
    source distribution.
    """
    folder = (
        Path(tempfile.gettempdir()) / f"dm-env-rpc-tests-{os.getuid()}" / f"former-{COMMIT[:8]}"
    )
    if folder.exists():
        return folder
    need("history")
    command = ["git", "-C", str(ROOT), "archive", COMMIT, _PACKAGE]
    archived = subprocess.run(command, capture_output=True, check=False)
    if archived.returncode:
        skip("history", f"the history of this checkout does not have {COMMIT[:8]}")
    folder.parent.mkdir(exist_ok=True)
    # Beside the place, so that two runs at once do not use half of one.
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
            archive.extractall(beside, filter="data")
        try:
            Path(beside).rename(folder)
        except OSError:
            assert folder.exists()  # Another run was quicker.
        else:
            Path(beside).mkdir()  # It is removed at the end.
    return folder
