"""The package of another commit, from the history of the checkout."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.support.programs import ROOT


def package_at(commit: str) -> Path:
    """Returns a folder with the package of a commit, which is kept between runs.

    Raises:
      subprocess.CalledProcessError: the history has no such commit.
    """
    named = ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{commit}^{{commit}}"]
    found = subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
    folder = Path(tempfile.gettempdir()) / f"dm-env-rpc-tests-{os.getuid()}" / f"former-{found[:8]}"
    if folder.exists():
        return folder
    command = ["git", "-C", str(ROOT), "archive", found, "dm_env_rpc_client"]
    archived = subprocess.run(command, capture_output=True, check=True).stdout
    folder.parent.mkdir(exist_ok=True)
    # Beside the place, so that two runs at once do not use half of one.
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
            archive.extractall(beside, filter="data")
        try:
            Path(beside).rename(folder)
        except OSError:
            assert folder.exists()  # Another run was quicker.
        else:
            Path(beside).mkdir()  # It is removed at the end.
    return folder
