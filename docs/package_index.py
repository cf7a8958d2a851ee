"""What a package index shows: README without relative links, and the addresses of the project.

A hook of hatchling. README's links lead to files of the repository, which an index does not have.
Its address is the setting `repository` of this hook in pyproject.toml. As long as that is empty,
the texts of these links stay, and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

__all__ = ["RepositoryLinks", "shown"]

_PICTURE = re.compile(r"!\[([^\]]*)\]\((?![a-z]+:)([^)\s]+)\)\n*")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)([^)\s]+)\)")


def shown(readme: str, repository: str, version: str) -> str:
    """Returns README as an index shows it.

    Args:
      readme: Markdown, with links relative to the repository.
      repository: its address; empty if there is none yet.
      version: of the package, whose tag the links lead to.
    """
    if not repository:
        return _LINK.sub(r"\1", _PICTURE.sub("", readme))
    files = f"{repository}/blob/v{version}"
    pictures = f"{repository}/raw/v{version}"
    readme = _PICTURE.sub(rf"![\1]({pictures}/\2)\n", readme)
    return _LINK.sub(rf"[\1]({files}/\2)", readme)


class RepositoryLinks(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling's documentation of metadata hooks."""
        repository = self.config["repository"].rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        version = re.search(
            r'^__version__ = "(.+)"$',
            Path(self.root, "dm_env_rpc_client/version.py").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        assert version is not None
        text = shown(readme, repository, version[1])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = _urls(repository, version[1]) if repository else {}


def _urls(repository: str, version: str) -> dict[str, str]:
    return {
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
    }
