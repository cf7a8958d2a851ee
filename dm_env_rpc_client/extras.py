"""The error text for a missing extra: its name and the command that installs it."""

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
"""The name of this package for pip."""

_CLONE = Path(__file__).resolve().parents[1]
"""The clone that contains this file, if any."""

_INSTALL = "pip install"


@contextlib.contextmanager
def importing(extra: str, needs: str) -> Iterator[None]:
    """A context for the imports of packages that come with an extra.

    Args:
      extra: its name, such as "record".
      needs: what needs it, with the verb, such as "recordings need".

    Raises:
      ModuleNotFoundError: a package is missing; says how to install the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if is_told(error):
            raise  # By another room, which this one imports.
        text = f"{error}; {needs} the extra: {install_command(extra)}"
        raise ModuleNotFoundError(text, name=error.name) from error


def is_told(error: BaseException) -> bool:
    """Whether an error comes from `importing`, which says how to install the missing extra."""
    return isinstance(error, ModuleNotFoundError) and _INSTALL in str(error)


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from where this package was installed from.

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
    """Where this package was installed from, if that is no package index.

    Attributes:
      what: the folder of an editable installation; otherwise an address that pip takes.
      is_editable: whether it is used from where it is.
    """

    what: str
    is_editable: bool


def origin() -> Origin | None:
    """Return where this package was installed from; None for an index, or if that is gone."""
    try:
        recorded = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        # A clone that is on the path is used where it is.
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
