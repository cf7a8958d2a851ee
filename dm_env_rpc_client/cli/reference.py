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
        "launch": "Starting servers, and starting them again",
        "errors": "Errors",
        "adaptors": "Gymnasium, in both directions",
        "server": "Serving environments",
        "server.deployment": "Deployment",
        "adaptors.opentelemetry": "Metrics, traces and logs",
        "extensions": "Properties and other extensions",
        "recording": "Recording and replaying",
        "distributed": "Rollouts and servers with Ray",
        "compliance": "Checking a server",
        "testing": "Tests with pytest",
        "testing.reliability": "Reliability",
        "cli": "The command line",
        "notebook": "Notebooks",
        "client": "Connections, and moving over from dm-env-rpc",
        "tensors": "Values and specs",
        "protocol": "The states of a connection",
        "transports": "Performance and transports",
        "testing.scale": "Scale: how many environments",
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
            "adaptors.opentelemetry",
            "adaptors.vector",
            "adaptors.wrappers",
            "bridges.env_c_api",
            "bridges.gym_socket",
            "compliance",
            "distributed",
            "extensions.legacy_properties",
            "extensions.properties",
            "extensions.property_access",
            "extensions.property_spec",
            "notebook",
            "recording",
            "server",
            "testing",
        )
    ),
)
"""The modules with public names, which are listed in their `__all__`."""


def build(folder: Path) -> None:
    """Writes the site.

    Args:
      folder: where to write it; existing files in it are overwritten. `index.html` is the
        first page.

    Raises:
      ImportError: pdoc, or an extra that a public module needs, is not installed.
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
        # An annotation that only type checkers can evaluate is shown as text.
        warnings.filterwarnings("ignore", "Error parsing type annotation", UserWarning)
        pdoc.pdoc(*_specs(modules), output_directory=folder)
    _remove_broken_links(folder)


def _specs(modules: Iterable[str]) -> Iterator[str]:
    """Yields what pdoc takes: these modules, and none of the modules below them."""
    # pdoc adds all modules of a package that has no `__all__`: they are taken out again, and
    # those of them that have a page come after it.
    for module in sorted(modules):
        yield module
        yield rf"!{re.escape(module)}\..*"


def _remove_broken_links(folder: Path) -> None:
    """Replaces links to members that are inherited from other libraries by their text."""
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
        from dm_env_rpc_client.errors import install_command

        return f"{error}; install it with: {install_command('docs')}"
    except OSError as error:
        return f"cannot write the reference: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
