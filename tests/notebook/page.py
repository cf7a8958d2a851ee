"""JupyterLab in a headless browser, a notebook that is open in it, and an explorer in that."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageChops
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.notebook.waiting import wait_for
from tests.support.stopwatch import patience

_PROMPTS = """
return [...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputArea-prompt')]
  .map(prompt => prompt.textContent.trim())
"""


_BOX = """
const box = arguments[0].getBoundingClientRect();
return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height};
"""
_MARGIN = 8


def without_margins(image: PIL.Image.Image) -> PIL.Image.Image:
    """Returns what an image shows, with a margin of its background.

    Args:
      image: RGB; its top right corner has the colour of the background.
    """
    corner = image.getpixel((image.width - 1, 0))
    background = PIL.Image.new("RGB", image.size, corner)
    box = PIL.ImageChops.difference(image, background).getbbox()
    assert box is not None, "there is something to see"
    left, top, right, bottom = box
    right, bottom = min(right + _MARGIN, image.width), min(bottom + _MARGIN, image.height)
    return image.crop((max(left - _MARGIN, 0), max(top - _MARGIN, 0), right, bottom))


class Page:
    """A notebook in JupyterLab.

    Args:
      chrome: the browser.
      url: of the JupyterLab server.
      name: of the notebook's file.
    """

    def __init__(self, chrome: webdriver.Chrome, url: str, name: str):
        self._chrome = chrome
        self._sessions = f"{url}api/sessions"
        self._name = name
        chrome.get(f"{url}doc/tree/{name}?reset")
        wait_for(lambda: self.find(".jp-Notebook .jp-Cell"), "the cells", 60)
        wait_for(self.is_kernel_idle, "the kernel", 60)

    def is_kernel_idle(self) -> bool:
        """Whether the page is connected to the notebook's kernel, and that waits for work.

        The server says so; what JupyterLab shows of it depends on its release and on the window.
        """
        with urllib.request.urlopen(self._sessions, timeout=10) as answer:
            sessions = json.load(answer)
        return any(
            session["path"] == self._name
            and session["kernel"]["connections"] > 0
            and session["kernel"]["execution_state"] == "idle"
            for session in sessions
        )

    def find(self, selector: str) -> list[WebElement]:
        return self._chrome.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What there is to read in the elements, as the browser has it right now."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')"
        )
        return str(self._chrome.execute_script(script, selector))

    def run_all(self) -> None:
        """Runs all cells by the menu, and waits until each has run; errors fail."""
        self._chrome.find_element(By.XPATH, "//div[@id='jp-MainMenu']//div[text()='Run']").click()
        wait_for(lambda: self.find('li[data-command="runmenu:run-all"]'), "the menu")[0].click()
        wait_for(self._has_run, "the cells to run", 60)
        errors = self.text('.jp-OutputArea-output[data-mime-type*="error"]')
        assert errors == "", errors

    def _has_run(self) -> bool:
        prompts = self._chrome.execute_script(_PROMPTS)
        return bool(prompts) and all(prompt.strip("[]:").isdigit() for prompt in prompts)

    def scroll_to(self, element: WebElement) -> None:
        script = "arguments[0].scrollIntoView({block: 'start'})"
        self._chrome.execute_script(script, element)

    def type(self, *keys: str) -> None:
        """Presses and releases keys where the focus is."""
        ActionChains(self._chrome).send_keys(*keys).perform()

    def hold(self, key: str) -> None:
        ActionChains(self._chrome).key_down(key).perform()

    def release(self, key: str) -> None:
        ActionChains(self._chrome).key_up(key).perform()

    def screenshot(self, element: WebElement, path: Path, scale: int = 1) -> None:
        """Writes a picture of an element, without the empty space around what it shows.

        Args:
          element: the element.
          path: of the file, a PNG of up to 256 colours if it is not of scale 1.
          scale: dots for each pixel of the page.

        The picture is of the page's own pixels: one of the window, which
        `WebElement.screenshot` takes, is black where the element leaves the window.
        """
        self.scroll_to(element)
        box = self._chrome.execute_script(_BOX, element)
        clip = {"captureBeyondViewport": True, "clip": {**box, "scale": scale}}
        found = self._chrome.execute_cdp_cmd("Page.captureScreenshot", clip)
        image = PIL.Image.open(io.BytesIO(base64.b64decode(found["data"]))).convert("RGB")
        shown = without_margins(image)
        (shown if scale == 1 else shown.quantize(256)).save(path, optimize=True)


class ExplorerOnPage:
    """The explorer on a page, once it shows a picture."""

    def __init__(self, page: Page):
        self.page = page
        self.element = wait_for(lambda: page.find(".dm-env-explorer"), "the explorer")[0]
        wait_for(lambda: self.picture() is not None, "a picture")
        page.scroll_to(self.element)

    def text(self) -> str:
        return " ".join(self.page.text(".dm-env-explorer").split())

    def episode(self) -> int:
        """The number of the episode."""
        found = re.search(r"episode (\d+)", self.text())
        assert found is not None
        return int(found[1])

    def picture(self) -> npt.NDArray[Any] | None:
        """The pixels on the screen where the first picture is."""
        images = self.page.find(".dm-env-explorer img")
        if not images or not images[0].size["width"]:
            return None
        png = images[0].screenshot_as_png
        return np.asarray(PIL.Image.open(io.BytesIO(png)).convert("RGB"))

    def readout(self, action: str) -> WebElement:
        """The number beside the slider of an action, which can be edited."""
        path = f".//*[contains(@class, 'widget-hbox')][./*[normalize-space()='{action}']]"
        row = self.element.find_element(By.XPATH, path)
        found: WebElement = row.find_element(By.CSS_SELECTOR, ".widget-readout")
        return found

    def press(self, label: str) -> None:
        """Presses the button with this label, once there is one."""

        def labelled() -> list[WebElement]:
            buttons = self.element.find_elements(By.TAG_NAME, "button")
            return [button for button in buttons if button.text.strip() == label]

        (button,) = wait_for(labelled, f"a button {label!r}")
        button.click()

    def wait_for(self, text: str) -> None:
        try:
            wait_for(lambda: text in self.text(), text, 15)
        except AssertionError:
            raise AssertionError(f"waited for {text!r}; there is: {self.text()}") from None

    def fill(self, line: WebElement, text: str) -> None:
        line.clear()
        line.send_keys(text, Keys.ENTER)


FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1180,1200",
)

_CONFIG = """
c.ServerApp.open_browser = False
c.ServerApp.port = 0
c.IdentityProvider.token = ""
c.ServerApp.password = ""
c.ServerApp.allow_root = True
c.ServerApp.disable_check_xsrf = True
"""

# Nothing is fetched, nothing pops up over the page, and cells that are scrolled out of sight
# stay on it.
_SETTINGS = {
    "apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "notebook-extension/tracker": {"windowingMode": "none"},
}


@contextlib.contextmanager
def jupyter_lab(folder: Path, private: Path) -> Iterator[str]:
    """Serves `folder` in JupyterLab, with nothing of the user's own; yields the URL.

    Kernels run in this very Python.
    """
    runtime = private / "runtime"
    config = private / "config"
    config.mkdir(parents=True)
    (config / "jupyter_lab_config.py").write_text(_CONFIG)
    for name, settings in _SETTINGS.items():
        path = private / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(settings))
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_DATA_DIR": str(private / "data"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTERLAB_SETTINGS_DIR": str(private / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(private / "workspaces"),
        "IPYTHONDIR": str(private / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--notebook-dir={folder}"]
    with (private / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield _wait_for_server(process, runtime, private / "log")
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def _wait_for_server(process: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    deadline = time.monotonic() + patience(60)
    while time.monotonic() < deadline and process.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(OSError, ValueError):
                url = str(json.loads(path.read_text())["url"])
                with urllib.request.urlopen(f"{url}api/status", timeout=5):
                    return url
        time.sleep(0.1)  # Nothing tells; it is looked at again.
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-4000:]}")


@contextlib.contextmanager
def browser(private: Path) -> Iterator[webdriver.Chrome]:
    """A headless Chromium, which takes the tests of group "browser"."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={private / 'profile'}"):
        options.add_argument(flag)
    chrome = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        chrome.set_page_load_timeout(60)
        chrome.set_script_timeout(30)
        yield chrome
    finally:
        chrome.quit()
