"""Error messages for missing extras, including the command that installs the extra."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import shlex
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dm_env_rpc_client import version

__all__ = ["DISTRIBUTION", "Origin", "importing", "install_command", "is_told", "origin"]

DISTRIBUTION = "dm-env-rpc-client"
"""The name of this package in package indexes."""

_CLONE = Path(__file__).resolve().parents[1]
"""The repository clone that contains this file, if any."""

_INSTALL = "pip install"


@contextlib.contextmanager
def importing(extra: str, needs: str) -> Iterator[None]:
    """If an import in the block fails, name the missing extra in the error message.

    Args:
      extra: its name, such as "record".
      needs: the subject and verb of the error message, such as "recordings need".

    Raises:
      ModuleNotFoundError: a package is missing; the message contains the command that installs the
        extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if is_told(error):
            raise  # A nested `importing` block has already named its extra.
        text = f"{error}; {needs} the extra: {install_command(extra)}"
        raise ModuleNotFoundError(text, name=error.name) from error


def is_told(error: BaseException) -> bool:
    """Return whether an error was raised by `importing` and already mentions the extra."""
    return isinstance(error, ModuleNotFoundError) and _INSTALL in str(error)


def install_command(extra: str) -> str:
    """Return the command that installs an extra from the same source as this package.

    Args:
      extra: its name, such as "cli".
    """
    found = origin()
    if found is not None and found.is_editable:
        return f"{_INSTALL} -e {shlex.quote(f'{found.what}[{extra}]')}"
    if found is not None:
        return f"{_INSTALL} {shlex.quote(f'{DISTRIBUTION}[{extra}] @ {found.what}')}"
    if version.PUBLISHED:
        return f"{_INSTALL} {shlex.quote(f'{DISTRIBUTION}[{extra}]')}"
    return f"{_INSTALL} {shlex.quote(f'.[{extra}]')} in a clone of dm_env_rpc_client"


class Origin(NamedTuple):
    """The source of this installation, if it is not a package index.

    Attributes:
      what: the folder of an editable installation; otherwise an address for pip.
      is_editable: whether the installation is editable.
    """

    what: str
    is_editable: bool


def origin() -> Origin | None:
    """Return the source of this installation, or None if it is an index or no longer exists."""
    try:
        recorded = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        # Not installed: a clone on the path is used in place.
        is_clone = (_CLONE / "pyproject.toml").exists()
        return Origin(str(_CLONE), is_editable=True) if is_clone else None
    # https://packaging.python.org/en/latest/specifications/direct-url/
    found = json.loads(recorded or "{}")
    url = str(found.get("url", ""))
    parts = urllib.parse.urlsplit(url)
    path = urllib.request.url2pathname(parts.path)
    if not url or (parts.scheme == "file" and not Path(path).exists()):
        return None
    if found.get("dir_info", {}).get("editable"):
        return Origin(path, is_editable=True)
    if "vcs_info" in found:
        revision = found["vcs_info"].get("requested_revision")
        url = f"{found['vcs_info']['vcs']}+{url}" + (f"@{revision}" if revision else "")
    if "subdirectory" in found:
        url += f"#subdirectory={found['subdirectory']}"
    return Origin(url, is_editable=False)
