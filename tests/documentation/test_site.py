"""The site of the documentation: it builds without warnings, links lead somewhere, search finds."""

from __future__ import annotations

import functools
import http.server
import importlib
import inspect
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer.main

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from dm_env_rpc_client.cli.app import app
from tests.documentation.test_docstrings import PROMISED
from tests.notebook.page import browser
from tests.support.stopwatch import patience

pytestmark = pytest.mark.timeout(400)
DOCS = Path(__file__).resolve().parents[2] / "docs"
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
"""What a browser loads by itself, by tag."""


class Page(HTMLParser):
    """What can be linked to on a page, where it links to, and what it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.ids |= {values.get("id") or "", values.get("name") or ""}
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)
        if target := values.get(LOADED.get(tag, "")):
            self.loaded.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    finished = subprocess.run(
        [*(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"), str(DOCS), str(folder)],
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_and_notebook_is_there(site: Path, pages: dict[Path, Page]) -> None:
    sources = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    expected = {site / path.relative_to(DOCS).with_suffix(".html") for path in sources}
    assert set(pages) - expected == {site / "genindex.html", site / "search.html",
                                     site / "py-modindex.html"}  # fmt: skip
    assert expected <= set(pages)


def test_no_link_is_dead(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            target = urllib.parse.unquote(target.partition("?")[0])
            destination = (path.parent / target).resolve() if target else path
            assert destination.exists(), f"{path.name}: {link}"
            if anchor and destination in pages:
                assert urllib.parse.unquote(anchor) in pages[destination].ids, f"{path}: {link}"


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[Path, Page]) -> None:
    loaded = [target for page in pages.values() for target in page.loaded]
    assert loaded
    assert [target for target in loaded if re.match(r"(https?:)?//", target)] == []
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(['\"]?|@import ['\"])(https?:)?//", path.read_text()), path


def test_every_promised_name_is_described(pages: dict[Path, Page]) -> None:
    ids = set().union(*(page.ids for page in pages.values()))
    missing = []
    for module, names in PROMISED.items():
        for name in names.split():
            thing: Any = importlib.import_module(module)
            for part in name.split("."):
                thing = getattr(thing, part)
            # Errors have one page, and so have the classes for Gymnasium.
            homes = (module, "dm_env_rpc_client.errors", "dm_env_rpc_client.adaptors.gymnasium")
            places = {f"{home}.{name}" for home in homes}
            if not inspect.ismodule(thing) and not places & ids:
                missing.append(f"{module}.{name}")
    assert missing == []


def test_the_reference_has_the_options_of_every_command(site: Path) -> None:
    text = (site / "reference" / "command-line.html").read_text()
    group = typer.main.get_command(app)
    commands = {f"dm-env-rpc-{name}": each for name, each in group.commands.items()}  # type: ignore[attr-defined]
    for sub_name, each in commands.pop("dm-env-rpc-properties").commands.items():
        commands[f"dm-env-rpc-properties-{sub_name}"] = each
    assert len(commands) > 12
    for name, command in commands.items():
        section = text[text.index(f'id="{name}"') :].partition("</section>")[0]
        options = {option for each in command.params for option in each.opts if option[0] == "-"}
        assert {option for option in options - {"--help", "-h"} if option not in section} == set()


def test_nothing_is_left_of_the_markup(pages: dict[Path, Page]) -> None:
    for path in pages:
        text = re.sub(r"<(pre|script).*?</\1>", "", path.read_text(), flags=re.DOTALL)
        for leftover in ("[][", "][]", "| ---", "```", "](", ":members:", " -- "):
            assert leftover not in text, f"{path.name}: {leftover}"


# In a browser.


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("localhost", 0), functools.partial(Quiet, directory=str(site))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with browser(tmp_path_factory.mktemp("browser")) as chrome:
        yield chrome


@pytest.mark.browser
@pytest.mark.parametrize(
    ("question", "page"),
    {
        "reconnect": "how-to/reconnect-and-restart.html",
        "timeout": "how-to/timeouts.html",
        "record": "how-to/record-and-replay.html",
        "many environments": "how-to/many-environments.html",
        "TLS": "how-to/tls-and-tokens.html",
    }.items(),
)
def test_a_search_finds_the_guide_first(
    chrome: webdriver.Chrome, address: str, question: str, page: str
) -> None:
    chrome.get(f"{address}/search.html?q={urllib.parse.quote(question)}")
    WebDriverWait(chrome, 60).until(
        lambda chrome: "found" in chrome.find_element(By.CSS_SELECTOR, ".search-summary").text
    )
    found = chrome.find_elements(By.CSS_SELECTOR, "#search-results ul.search > li > a")
    links = [str(link.get_attribute("href")).partition("?")[0] for link in found]
    assert links[0].partition("#")[0] == f"{address}/{page}"
    guides = ("/how-to/", "/tutorials/", "/explanations/")
    assert all(any(folder in link for folder in guides) for link in links[:3]), links[:3]


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1400])
def test_pages_are_as_wide_as_the_window(
    chrome: webdriver.Chrome, address: str, width: int
) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for page in ("index", "tutorials/ppo", "how-to/timeouts", "explanations/scorecard",
                 "reference/api/environments", "reference/protocol-additions",
                 "notebooks/04_many_environments"):  # fmt: skip
        chrome.get(f"{address}/{page}.html")
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= width, page
