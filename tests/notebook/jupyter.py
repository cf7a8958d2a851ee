"""A JupyterLab server and a headless browser that looks at it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.support.stopwatch import patience

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
