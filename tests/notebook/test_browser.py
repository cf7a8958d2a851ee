"""The explorer and a notebook in a real browser: JupyterLab in headless Chromium."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

pytest.importorskip("selenium")
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.notebook import sources
from tests.notebook.page import ExplorerOnPage, Page, browser, jupyter_lab
from tests.notebook.waiting import wait_for

# Everything here shares one server and one browser, each of which takes seconds to start.
pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with browser(tmp_path_factory.mktemp("browser")) as chrome:
        yield chrome


@pytest.fixture(scope="module")
def lab(chrome: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("notebooks")
    lander = sources.up_to(sources.read("02_exploring_with_widgets"), "explorer = explore(")
    for cell in lander.cells:
        if "serve(Catch)" in cell.source:  # The first explorer; its imports are for all cells.
            lines = cell.source.splitlines()
            cell.source = "\n".join(line for line in lines if "import" in line)
    sources.write(lander, folder / "lander.ipynb")
    sources.write(sources.read("02_exploring_with_widgets"), folder / "whole.ipynb")
    with jupyter_lab(folder, tmp_path_factory.mktemp("jupyter")) as url:
        yield url


@pytest.fixture(scope="module")
def explorer(chrome: webdriver.Chrome, lab: str) -> ExplorerOnPage:
    """The explorer of notebook 02, which shows a lander."""
    page = Page(chrome, lab, "lander.ipynb")
    page.run_all()
    return ExplorerOnPage(page)


@pytest.fixture
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pictures go; into the project only if asked to."""
    return sources.PICTURES if request.config.getoption("--rewrite-notebooks") else tmp_path


def differ(before: Any, after: Any) -> bool:
    return before.shape != after.shape or bool(np.any(before != after))


def test_a_click_on_a_button_steps_and_the_picture_changes(explorer: ExplorerOnPage) -> None:
    explorer.press("Reset")
    explorer.wait_for("step 0")
    before = explorer.picture()
    explorer.press("right")
    explorer.wait_for("step 1")
    explorer.wait_for("action thrust 0, steer 2")
    wait_for(lambda: differ(before, explorer.picture()), "another picture")
    settled = explorer.picture()
    assert not differ(settled, explorer.picture())
    explorer.press("Step")
    explorer.wait_for("step 2")
    wait_for(lambda: differ(settled, explorer.picture()), "another picture")


def test_keys_play_and_are_none_of_jupyterlabs(explorer: ExplorerOnPage) -> None:
    page = explorer.page
    cells = len(page.find(".jp-Notebook .jp-Cell"))
    explorer.press("Reset")
    explorer.wait_for("step 0")
    # The policy of a run that was stopped may have left its thrust here.
    explorer.fill(explorer.readout("thrust"), "0")
    wait_for(lambda: explorer.readout("thrust").text == "0.00", "no thrust")
    before = explorer.picture()
    # Before the box has the focus, keys are not for it.
    assert "click here to use the keys" in explorer.text()
    page.find(".dm-env-keypad")[0].click()
    explorer.wait_for("keys are active")
    page.type(Keys.ARROW_LEFT)
    explorer.wait_for("step 1")
    explorer.wait_for("action thrust 0, steer 0")
    wait_for(lambda: differ(before, explorer.picture()), "another picture")
    page.type(Keys.ARROW_UP)
    explorer.wait_for("action thrust 1, steer")
    # In JupyterLab r would make the cell raw text, and Enter would edit it.
    page.type("r")
    explorer.wait_for("step 0")
    page.type(Keys.ENTER)
    explorer.wait_for("Stop")
    page.hold(Keys.ARROW_RIGHT)
    explorer.wait_for("steer 2")
    page.release(Keys.ARROW_RIGHT)
    page.type(Keys.ENTER)
    wait_for(lambda: "Stop" not in explorer.text(), "the end of the run")
    assert len(page.find(".jp-Notebook .jp-Cell")) == cells
    assert page.find(".jp-Notebook.jp-mod-commandMode")
    assert len(page.find(".jp-Notebook .jp-RawCell")) == 0


def line(explorer: ExplorerOnPage, value: str) -> WebElement | None:
    """The line of text that edits the wind, if it shows a value."""
    for found in explorer.page.find(".dm-env-explorer input[placeholder='float64']"):
        with contextlib.suppress(StaleElementReferenceException):
            if found.get_attribute("value") == value:
                return found
    return None


def test_properties_are_edited_on_the_page(explorer: ExplorerOnPage) -> None:
    explorer.press("Read properties")
    explorer.wait_for("5 properties")
    explorer.fill(wait_for(lambda: line(explorer, "0.0"), "the value of the wind"), "2.5")
    explorer.wait_for("physics.wind = 2.5 written")
    explorer.press("Read properties")
    explorer.wait_for("5 properties")

    wind = wait_for(lambda: line(explorer, "2.5"), "the new value, read back")
    explorer.fill(wind, "strong")
    explorer.wait_for("expected a number or a list such as [0, 1], got 'strong'")
    explorer.fill(wind, "0.0")
    explorer.wait_for("physics.wind = 0.0 written")
    assert "is not a number" not in explorer.text()


def test_the_explorer_fits_on_the_page(explorer: ExplorerOnPage, pictures: Path) -> None:
    explorer.fill(explorer.page.find(".dm-env-explorer .widget-readout")[0], "60")
    explorer.press("Reset")
    explorer.press("Run")
    begun = explorer.episode()
    wait_for(lambda: explorer.episode() >= begun + 4, "four episodes")
    explorer.fill(explorer.page.find(".dm-env-explorer .widget-readout")[0], "5")
    # In each episode the policy brakes, and the controls show it.
    wait_for(lambda: explorer.readout("thrust").text == "1.00", "the thrust of the policy")
    explorer.press("Stop")
    wait_for(lambda: "Stop" not in explorer.text(), "the end of the run")
    for part in ("Reward per step", "Return per episode", "┆ new episode", "finished episode"):
        assert part in explorer.text()
    assert len(explorer.element.find_elements(By.CSS_SELECTOR, "line.boundary")) >= 3
    width = explorer.element.size["width"]
    left = explorer.element.location["x"]
    shown = explorer.element.find_elements(
        By.CSS_SELECTOR, "img, svg, button, input, .dm-env-keypad"
    )
    assert len(shown) > 12
    for element in shown:
        right = element.location["x"] + element.size["width"]
        assert left <= element.location["x"]
        assert right <= left + width
    plots = explorer.element.find_elements(By.CSS_SELECTOR, ".dm-env-plots svg")
    assert plots[-1].location["x"] + plots[-1].size["width"] > left + 0.95 * width
    assert plots[-1].size["width"] > 0.5 * width
    explorer.page.screenshot(explorer.element, pictures / "explorer.png", scale=2)
    with PIL.Image.open(pictures / "explorer.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert edge.min() > 200, "the explorer is light at its edges"
    assert (pictures / "explorer.png").stat().st_size < 150_000


def test_a_small_image_is_enlarged_without_blur(explorer: ExplorerOnPage) -> None:
    (image,) = explorer.element.find_elements(By.TAG_NAME, "img")
    assert image.value_of_css_property("image-rendering") == "pixelated"
    assert image.size["width"] == 2 * 200, "all pixels of the camera are of one size"


def test_a_notebook_runs_in_jupyterlab(chrome: webdriver.Chrome, lab: str, pictures: Path) -> None:
    page = Page(chrome, lab, "whole.ipynb")
    page.run_all()
    shown = page.text(".jp-RenderedHTML")
    parts = ("DmEnvAdaptor at localhost", "0 … 2", "TimeStep FIRST", "40 TimeSteps", "pod.fuel")
    for part in parts:
        assert part in shown
    explorers = page.find(".dm-env-explorer")
    assert len(explorers) == 2, "they are alive at the end"
    explorers[0].find_element(By.XPATH, ".//button[contains(., 'right')]").click()
    wait_for(lambda: "action paddle 2" in explorers[0].text, "a step of the first explorer")
    images = page.find(".jp-RenderedHTML img")
    assert len(images) == 2
    assert all(image.size["width"] >= 200 for image in images)
    page.screenshot(page.find(".jp-RenderedHTML:has(img)")[1], pictures / "displays.png")
    assert (pictures / "displays.png").stat().st_size < 150_000
