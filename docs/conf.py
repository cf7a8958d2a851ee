"""How Sphinx builds the site: `sphinx-build -W --keep-going docs build/site`.

Pages load nothing from other hosts, and neither does the build, unless it is called with
`-t intersphinx`: then types of Python, NumPy and Gymnasium link to their own documentation.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import runpy
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer.main
from docutils import nodes
from docutils.parsers.rst import roles
from sphinx.application import Sphinx
from sphinx.ext.autodoc import preserve_defaults
from sphinx.roles import XRefRole

_DOCS = Path(__file__).parent
_installing = runpy.run_path(str(_DOCS / "install_texts.py"))["installing"]
sys.path.insert(0, str(_DOCS.parent))

# Sphinx reads what is below this folder only; Git ignores the copy.
shutil.copytree(_DOCS.parent / "notebooks", _DOCS / "notebooks", dirs_exist_ok=True)

import dm_env_rpc_client  # noqa: E402
from dm_env_rpc_client.cli.app import app as command_line  # noqa: E402
from dm_env_rpc_client.tensors.memory_limits import Limits  # noqa: E402

project = "dm_env_rpc_client"
author = copyright = "the dm_env_rpc_client authors"
release = version = dm_env_rpc_client.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
if tags.has("intersphinx"):  # type: ignore[name-defined]  # noqa: F821  # Sphinx defines it.
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "gymnasium": ("https://gymnasium.farama.org", None),
    }
# dm_env has no inventory to link by; this document describes all of its names.
_DM_ENV = "https://github.com/google-deepmind/dm_env/blob/master/docs/index.md"

myst_heading_anchors = 4
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, Any] = {}  # They would be loaded from another host.

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_mock_imports = [
    name for name in ("ray", "stable_baselines3") if importlib.util.find_spec(name) is None
]
napoleon_use_ivar = True
default_role = "name"
smartquotes = False  # Two hyphens are those of an option.
# A name that a package has from one of its modules has two targets, which are the same place.
suppress_warnings = ["ref.python"]

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_search_scorer = str(_DOCS / "_static" / "search_scorer.js")
html_theme_options = {"navigation_with_keys": True}


def _name(
    role: str, rawtext: str, text: str, *where: Any, **options: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """What stands in single backticks in a docstring: a name, which is a link, or code."""
    if re.fullmatch(r"[A-Za-z_][\w.]*", text):
        return XRefRole()("py:obj", rawtext, text, *where, **options)
    return [nodes.literal(rawtext, text)], []


def _with_values(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str | None, *rest: Any
) -> tuple[str | None, Any] | None:
    """Shows what a default is, in the place of a constant's name: `timeout=10.0`."""
    if signature is None:
        return None
    function = inspect.unwrap(thing.__init__ if isinstance(thing, type) else thing)
    names = getattr(function, "__globals__", {})
    signature = re.sub(
        r"(?<==)(\s?)(_?[A-Z][A-Z0-9_]+)(?=[,)])",
        lambda found: found[1] + _value(found[2], names.get(found[2])),
        signature,
    )
    for made in getattr(thing, "__dataclass_fields__", {}).values():
        if made.init and made.default_factory is not dataclasses.MISSING:
            signature = signature.replace("<factory>", repr(made.default_factory()), 1)
    signature = signature.replace(repr(Limits()), "Limits()")
    signature = re.sub(r"(?:MappingProxyType|mappingproxy)\(({.*?})\)", r"\1", signature)
    return re.sub(r"<function \w+>|lambda ?: \.\.\.", "...", signature), *rest


def _keep_given_signatures() -> None:
    """Has Sphinx look up defaults in the source only of functions that have no `__signature__`.

    One that `system.keywords.takes` has decorated has others than the source spells out.
    """
    update = getattr(preserve_defaults, "update_default_value", preserve_defaults.update_defvalue)
    look_up = update.__globals__["_get_arguments"]
    update.__globals__["_get_arguments"] = lambda function: (
        None if hasattr(function, "__signature__") else look_up(function)
    )


def _value(name: str, value: Any) -> str:
    """The text of a constant: a number or text, or what makes an equal object; or its name."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return repr(kind(value))
    if isinstance(value, Mapping):
        return repr(dict(value))
    if dataclasses.is_dataclass(value) and value == type(value)():
        return f"{type(value).__name__}()"
    return name


def _prose_in_raises(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, *rest: Any
) -> None:
    """Mark entries of a `Raises` section that are prose, such as "As `step`", for Napoleon.

    Napoleon, which runs later, would take the text before the first colon as an exception's name.
    """
    lines: list[str] = rest[0]
    inside = prose = False
    indent = 0
    for index, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        if line.strip() == "Raises:":
            inside, prose, indent = True, False, 0
        elif inside and line.strip():
            indent = indent or depth
            inside = depth >= indent > 0
            if inside and depth == indent:
                if re.match(r"[A-Za-z_][\w.]*(,? [A-Z][\w.]*| or [\w.]+)*:", line.strip()):
                    prose = False
                elif prose:
                    lines[index] = "  " + line
                else:
                    lines[index], prose = line[:indent] + ":" + line[indent:], True


def _without_docstrings_of_modules(app: Sphinx, what: str, *rest: Any) -> None:
    """The pages of the API have introductions of their own."""
    if what == "module":
        rest[-1].clear()


def _link_to_dm_env(
    app: Sphinx, env: Any, node: nodes.Element, text: nodes.Element
) -> nodes.reference | None:
    if not str(node.get("reftarget")).startswith("dm_env."):
        return None
    return nodes.reference("", "", text, refuri=_DM_ENV)


def _options(name: str, command: Any) -> Iterator[str]:
    """Yields the lines about a command, or about those of a group: its help, and a table."""
    if commands := getattr(command, "commands", None):
        for sub_name, each in commands.items():
            yield from _options(f"{name} {sub_name}", each)
        return
    yield f"\n### {name}\n\n{_escaped(command.help.partition(chr(10) * 2)[0])}\n"
    yield "| argument | default | meaning |\n| --- | --- | --- |"
    for each in command.params:
        if each.hidden or each.name == "help":
            continue
        names = ", ".join((*each.opts, *each.secondary_opts))
        value = each.metavar or each.name.upper()
        if not names.startswith("-"):
            names = value
        elif not each.is_flag:
            names += f" {value}"
        default = getattr(each.default, "value", each.default)
        shown = "" if default in (None, False, True) else f"`{default}`"
        yield f"| `{names}` | {shown} | {_escaped(each.help or '')} |"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|{}\[\]])", r"\\\1", " ".join(text.split()))


def _with_options(app: Sphinx, page: str, source: list[str]) -> None:
    """Puts the options of all commands into the page about them, from what `--help` shows."""
    if page == "reference/command-line":
        commands = typer.main.get_command(command_line).commands  # type: ignore[attr-defined]
        lines = [
            line for name in commands for line in _options(f"dm-env-rpc {name}", commands[name])
        ]
        source[0] = source[0].replace("<!-- options -->", "\n".join(lines))


def _with_installing(app: Sphinx, name: str, source: list[str]) -> None:
    """Says how to install the package from where it is."""
    source[0] = _installing(source[0], dm_env_rpc_client.version.PUBLISHED)


def _with_notebooks(app: Sphinx, name: str, source: list[str]) -> None:
    """Has links to the notebooks of the repository lead to their copies."""
    source[0] = re.sub(r"\]\(((?:\.\./)*)\.\./notebooks/", r"](\1notebooks/", source[0])


def _with_dashes(app: Sphinx, tree: nodes.document) -> None:
    """Sphinx puts two hyphens between an argument and what it is for."""
    for text in [*tree.findall(nodes.Text)]:
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    _keep_given_signatures()
    roles.register_local_role("name", _name)  # type: ignore[arg-type]
    app.connect("autodoc-process-signature", _with_values)
    app.connect("autodoc-process-docstring", _prose_in_raises, priority=400)
    app.connect("autodoc-process-docstring", _without_docstrings_of_modules)
    app.connect("missing-reference", _link_to_dm_env)
    app.connect("doctree-read", _with_dashes)
    app.connect("source-read", _with_installing)
    app.connect("source-read", _with_options)
    app.connect("source-read", _with_notebooks)
