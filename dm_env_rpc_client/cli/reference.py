"""The guides and the API as a site: `python -m dm_env_rpc_client.cli.reference FOLDER`.

It needs the extra `docs`. `reference_templates/` holds the pages that are not pdoc's own.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ["GUIDES", "PUBLIC_MODULES", "build"]

_PACKAGE = Path(__file__).parents[1].name
_TEMPLATES = Path(__file__).with_name("reference_templates")

_LINK_TO_A_MEMBER = re.compile(r'<a href="(?P<href>[^":]*#[^"]+)"[^>]*>(?P<text>.*?)</a>', re.S)

GUIDES = {
    f"{_PACKAGE}.{name}": title
    for name, title in {
        "environment": "Environments",
        "errors": "Errors",
        "adaptors": "Gymnasium, in both directions",
        "server": "Serving environments",
        "extensions": "Properties and other extensions",
        "compliance": "Checking a server",
        "testing": "Tests with pytest",
        "cli": "The command line",
        "notebook": "Notebooks",
        "client": "Connections, and moving over from dm-env-rpc",
        "tensors": "Values and specs",
        "protocol": "The states of a connection",
        "transports": "Performance and transports",
        "bridges": "Other protocols",
        "bridges.gym_socket": "gym-socket-api",
        "bridges.env_c_api": "C libraries",
    }.items()
}
"""The modules whose docstrings are guides, in reading order, with their titles."""

PUBLIC_MODULES = (
    _PACKAGE,
    *(
        f"{_PACKAGE}.{name}"
        for name in (
            "environment.base_adaptor",
            "environment.batched",
            "adaptors.gymnasium",
            "adaptors.vector",
            "bridges.env_c_api",
            "bridges.gym_socket",
            "compliance",
            "extensions.legacy_properties",
            "extensions.properties",
            "extensions.property_access",
            "extensions.property_spec",
            "notebook",
            "server",
            "testing",
        )
    ),
)
"""What people import from; each says in `__all__` what it has for them, modules too."""


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

    modules = dict.fromkeys((*PUBLIC_MODULES, *GUIDES))
    documented = [importlib.import_module(module) for module in modules]
    summary = (documented[0].__doc__ or "").partition("\n")[0].replace("`", "")
    pdoc.render.configure(
        docformat="google",
        show_source=False,
        footer_text=_PACKAGE,
        mermaid=True,
        template_directory=_TEMPLATES,
    )
    api = {module: module for module in sorted((*PUBLIC_MODULES, f"{_PACKAGE}.errors"))}
    pdoc.render.env.globals.update(guides=GUIDES, api=api, summary=summary)
    with warnings.catch_warnings():
        # An annotation that means something to type checkers alone is shown as it is written.
        warnings.filterwarnings("ignore", "Error parsing type annotation", UserWarning)
        pdoc.pdoc(*_specs(modules), output_directory=folder)
    _unlink_what_is_not_there(folder)


def _specs(modules: Iterable[str]) -> Iterator[str]:
    """Yields what pdoc takes: these modules, and none of the modules below them."""
    # pdoc adds all modules of a package that has no `__all__`: they are taken out again, and
    # those of them that have a page come after it.
    for module in sorted(modules):
        yield module
        yield rf"!{re.escape(module)}\..*"


def _unlink_what_is_not_there(folder: Path) -> None:
    """Makes text of links to members that classes have from bases in other libraries."""
    pages = {path.resolve(): path.read_text() for path in folder.rglob("*.html")}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}

    def check(path: Path, link: re.Match[str]) -> str:
        target, _, anchor = link["href"].partition("#")
        destination = (path.parent / target).resolve() if target else path
        return link[0] if anchor in ids.get(destination, (anchor,)) else link["text"]

    for path, text in pages.items():
        checked = _LINK_TO_A_MEMBER.sub(functools.partial(check, path), text)
        path.write_text(checked)


def _main(arguments: list[str]) -> int | str:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        return "usage: python -m dm_env_rpc_client.cli.reference FOLDER"
    try:
        build(Path(arguments[0]))
    except ImportError as error:
        return f"{error}; install what is missing with: pip install 'dm-env-rpc-client[docs]'"
    except OSError as error:
        return f"cannot write the reference: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
