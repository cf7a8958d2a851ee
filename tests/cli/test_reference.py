"""The API reference: docstrings that say everything, and a site in which all of them are."""

from __future__ import annotations

import html
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dm_env_rpc_client.cli import reference
from dm_env_rpc_client.cli.reference import GUIDES, PUBLIC_MODULES, build
from tests.reliability.scorecard import ROWS

# What is promised, by module: names that people's code imports.
PROMISED = {
    "dm_env_rpc_client": """
        connect make make_async Connection AsyncConnection connect_async
        create_secure_channel_and_connect create_world join_world create_and_join_world
        reset_world destroy_world leave_world DmEnvAdaptor AsyncDmEnvAdaptor SpecManager
        pack_tensor unpack_tensor tensor_spec_to_dm_env_spec dm_env_spec_to_tensor_spec bounds
        Bounds set_bounds flatten_dict unflatten_dict dm_env_rpc_pb2 properties_pb2 errors
        DmEnvRpcClientError DmEnvRpcError ConnectionClosedError ConnectionLostError
        DeadlineExceededError ProtocolError SpecError AutoObservations
        DmEnvAdaptor.step DmEnvAdaptor.reset DmEnvAdaptor.step_async DmEnvAdaptor.unroll
        Connection.send Connection.submit Connection.close
        SpecManager.pack SpecManager.unpack SpecManager.names SpecManager.uid_to_name
    """,
    "dm_env_rpc_client.errors": "DmEnvRpcError DmEnvRpcError.code DmEnvRpcError.details",
    "dm_env_rpc_client.extensions.properties": "PropertiesExtension PropertySpec",
    "dm_env_rpc_client.extensions.legacy_properties": "LegacyProperties",
    "dm_env_rpc_client.server": "serve Server Server.stop World Game Properties Catch Race",
    "dm_env_rpc_client.distributed": "LocalRollouts RayRollouts RayServers",
    "dm_env_rpc_client.testing": "FaultProxy ScriptedServer",
    "dm_env_rpc_client.compliance": "run Options CHECKS",
    "dm_env_rpc_client.adaptors.gymnasium": "GymnasiumEnv GymnasiumEnvironment",
    "dm_env_rpc_client.adaptors.vector": "RemoteVectorEnv",
    "dm_env_rpc_client.adaptors.wrappers": "ActionRepeat ActionScale FloatCast ObservationStack",
    "dm_env_rpc_client.bridges.gym_socket": "GymSocketEnvironment serve Server",
    "dm_env_rpc_client.bridges.env_c_api": "EnvCApiEnvironment",
    "dm_env_rpc_client.notebook": "explore Explorer",
}


class Documented(NamedTuple):
    """A public function, method, property or class."""

    name: str
    thing: Any
    overridden: bool


def public_things() -> Iterator[Documented]:
    seen = set()
    modules = [*PUBLIC_MODULES, "dm_env_rpc_client.errors"]
    for module_name in modules:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            thing = getattr(module, name)
            home = getattr(thing, "__module__", "")
            if id(thing) in seen or not home.startswith("dm_env_rpc_client") or "_pb2" in home:
                continue
            seen.add(id(thing))
            yield Documented(f"{module_name}.{name}", thing, False)
            if inspect.isclass(thing):
                for member, value in vars(thing).items():
                    if not member.startswith("_"):
                        inherited = any(
                            inspect.getdoc(getattr(base, member, None))
                            for base in thing.__mro__[1:]
                            if hasattr(base, member)
                        )
                        yield Documented(f"{module_name}.{name}.{member}", value, inherited)


def function_of(thing: Any) -> Callable[..., Any] | None:
    """The function behind a function, a method or a class method."""
    unwrapped = getattr(thing, "__func__", thing)
    return unwrapped if inspect.isfunction(unwrapped) else None


THINGS = list(public_things())
FUNCTIONS = [
    (thing.name, function)
    for thing in THINGS
    if (function := function_of(thing.thing)) is not None and not thing.overridden
]


def says_it_is_elsewhere(text: str) -> bool:
    return (
        re.search(r"\b([Ss]ee|[Aa]s|[Oo]therwise as|to those of|than) `|are the same", text)
        is not None
    )


def test_there_is_a_lot_to_document() -> None:
    assert len(THINGS) > 200
    assert len(FUNCTIONS) > 80


def test_everything_public_has_a_docstring() -> None:
    missing = [
        name
        for name, thing, overridden in THINGS
        if (inspect.isclass(thing) or function_of(thing) or isinstance(thing, property))
        and not (thing.__doc__ or (overridden and inspect.getdoc(thing)))
    ]
    assert missing == []


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_a_docstring_says_what_goes_in_what_comes_out_and_what_goes_wrong(
    name: str, function: Callable[..., Any]
) -> None:
    text = inspect.getdoc(function) or ""
    parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    is_sentence = "\n\n" not in text
    elsewhere = says_it_is_elsewhere(text)
    if not is_sentence and parameters and not elsewhere:
        assert "Args:" in text, "more than a sentence, and no section for the arguments"
    for parameter in parameters:
        named = parameter.strip("_").replace("_", "[ _]").rstrip("s")
        assert elsewhere or re.search(named, text, re.I), f"nothing about {parameter}"
    returned = inspect.signature(function).return_annotation
    if returned not in (None, "None", inspect.Signature.empty) and not is_sentence:
        assert elsewhere or re.search(r"\b(Returns|Yields)\b", text), "nothing about what returns"
    for raised in set(re.findall(r"^\s+raise (\w*Error)\b", inspect.getsource(function), re.M)):
        assert elsewhere or raised in text or "Raises:" in text, f"nothing about {raised}"


# The site.


class Page(HTMLParser):
    """What can be linked to on a page, and where it links to."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.ids.add(values.get("id") or "")
        target = values.get("href") if tag in ("a", "link") else values.get("src")
        if target:
            self.links.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "site"
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-m", "dm_env_rpc_client.cli.reference", str(folder)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")
    return folder


def page(site: Path, module: str) -> Path:
    return site.joinpath(*module.split(".")).with_suffix(".html")


@pytest.mark.parametrize("module", PROMISED)
def test_every_promised_name_is_there_with_its_docstring(site: Path, module: str) -> None:
    path = page(site, module)
    ids = Page(path).ids
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", path.read_text())).split())
    for name in PROMISED[module].split():
        thing: Any = importlib.import_module(module)
        for part in name.split("."):
            thing = getattr(thing, part)
        if inspect.ismodule(thing):
            assert name in words
            continue
        assert name in ids, name
        if inspect.isclass(thing) or callable(thing) or isinstance(thing, property):
            first = re.split(r"[`*:]|\n\n", inspect.cleandoc(thing.__doc__))[0]
            assert " ".join(first.split()) in words, name


def test_sections_are_rendered_as_such(site: Path) -> None:
    text = page(site, "dm_env_rpc_client").read_text()
    connect = text[text.index('id="connect"') :]
    for section in ("Arguments", "Returns", "Raises"):
        assert re.search(rf"<h6[^>]*>{section}:?</h6>", connect[:20_000])


def test_no_link_is_broken(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) >= len(PUBLIC_MODULES)
    checked = 0
    for path, parsed in pages.items():
        for link in parsed.links:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            destination = (path.parent / target).resolve() if target else path
            assert destination.exists(), f"{path.name}: {link}"
            if anchor and destination in pages:
                assert anchor in pages[destination].ids, f"{path.name}: {link}"
            checked += 1
    assert checked > 500


def test_nothing_private_has_a_page(site: Path) -> None:
    expected = {page(site, module) for module in (*PUBLIC_MODULES, *GUIDES)}
    assert {*site.rglob("*.html")} == {*expected, site / "index.html"}


def test_the_first_page_has_the_guides_in_reading_order_and_the_api(site: Path) -> None:
    links = [(site / link).resolve() for link in Page(site / "index.html").links]
    pages = [link for link in links if link.suffix == ".html"]
    api = [page(site, module) for module in sorted([*PUBLIC_MODULES, "dm_env_rpc_client.errors"])]
    assert pages == [*api, *(page(site, module) for module in GUIDES)]


@pytest.mark.parametrize("module", GUIDES)
def test_a_guide_is_rendered_whole_and_leads_back_to_the_first_page(
    site: Path, module: str
) -> None:
    path = page(site, module)
    text = path.read_text()
    headings = re.findall(r"^## (.*)$", importlib.import_module(module).__doc__ or "", re.M)
    assert headings or module == "dm_env_rpc_client.bridges"
    for heading in headings:
        assert re.search(rf"<h2[^>]*>{re.escape(heading)}</h2>", text), heading
    assert site / "index.html" in {(path.parent / link).resolve() for link in Page(path).links}
    # What Markdown does not take for a link, a table or a fence stays as it is written.
    for leftover in ("[][", "][]", "| ---", "```"):
        assert leftover not in text, leftover


def test_the_reliability_guide_has_the_table_of_the_last_run(site: Path) -> None:
    text = html.unescape(page(site, "dm_env_rpc_client.testing.reliability").read_text())
    cells = re.findall(r"<td>(.*?)</td>", text, re.S)
    for row in ROWS.values():
        assert str(row.number) in cells
        assert re.sub("[`*]", "", row.tried) in re.sub("</?code>|[`*]", "", text)


def test_it_is_called_with_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "usage:" in str(reference._main([]))
    assert "usage:" in str(reference._main(["--help"]))
    (tmp_path / "file").touch()
    assert "cannot write the reference" in str(reference._main([str(tmp_path / "file")]))
    monkeypatch.setitem(sys.modules, "pdoc", None)
    assert "[docs]" in str(reference._main([str(tmp_path)]))


@pytest.mark.slow
def test_it_can_be_built_from_python(tmp_path: Path) -> None:
    build(tmp_path)
    assert (tmp_path / "dm_env_rpc_client" / "errors.html").exists()
