"""The API reference, a site made from docstrings: `python -m dm_env_rpc_client.reference site`.

It needs the extra `docs`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

__all__ = ["build", "public_modules"]

_PACKAGE = Path(__file__).parent
_FOLDERS_OF_MODULES = ("adaptors", "extensions")
"""Folders in which each file is what people import, other than those that are one thing."""


def public_modules() -> Iterator[str]:
    """Yields the names of the modules that people import from, the package's own first.

    Those are `errors`, every folder that says in `__all__` what is in it, and the files of
    folders that hold one thing each.
    """
    name = _PACKAGE.name
    yield name
    yield f"{name}.errors"
    for init in sorted(_PACKAGE.rglob("*/__init__.py")):
        folder = init.parent.relative_to(_PACKAGE)
        if "__all__" in init.read_text():
            yield ".".join([name, *folder.parts])
    for folder_name in _FOLDERS_OF_MODULES:
        for path in sorted(_PACKAGE.joinpath(folder_name).glob("[!_]*.py")):
            yield f"{name}.{folder_name}.{path.stem}"


def build(folder: Path) -> None:
    """Writes the site.

    Args:
      folder: where to; files of that name in it are overwritten. `index.html` is the first
        page.

    Raises:
      ImportError: an extra is missing; pdoc itself or what a public module needs.
    """
    import pdoc
    import pdoc.render

    modules = list(public_modules())
    for module in modules:
        importlib.import_module(module)
    pdoc.render.configure(docformat="google", show_source=False, footer_text=_PACKAGE.name)
    with warnings.catch_warnings():
        # An annotation that means something to type checkers alone is shown as it is written.
        warnings.filterwarnings("ignore", "Error parsing type annotation", UserWarning)
        pdoc.pdoc(*modules, output_directory=folder)


def _main(arguments: list[str]) -> int | str:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        return "usage: python -m dm_env_rpc_client.reference FOLDER"
    try:
        build(Path(arguments[0]))
    except ImportError as error:
        return f"{error}; install what is missing with: pip install 'dm-env-rpc-client[docs]'"
    except OSError as error:
        return f"cannot write the reference: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
