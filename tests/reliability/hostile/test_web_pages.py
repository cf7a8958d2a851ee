"""A web page in a browser on the same machine begins no session at a plaintext server on loopback.

Browsers speak HTTP/2 over TLS only. What a page can send without TLS is HTTP/1.1, which the server
refuses at its first line. So the server need not look at `:authority` or `origin`, which proxies
and port forwarding may set to any name.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.testing import FaultProxy
from tests.support.environments import Echo
from tests.support.groups import installed
from tests.support.one_file import one_file
from tests.support.stopwatch import patience
from tests.transports import frames
from tests.transports.raw_client import request

pytestmark = [pytest.mark.browser, pytest.mark.row(40)]

TRANSPORTS = ["http2"]

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--host-resolver-rules=MAP evil.test 127.0.0.1",
)  # fmt: skip

# A whole session over HTTP/2, as a native client would begin it.
SESSION = frames.PREFACE + frames.frame(frames.SETTINGS) + request(1)

PAGE = """<!doctype html><script>
const at = HOSTS.map(host => host + ":PORT");
const session = Uint8Array.from(atob("SESSION"), each => each.charCodeAt(0));
const settled = promise => Promise.race([
  promise.then(answer => "answer " + answer.type, error => "error"),
  new Promise(resolve => setTimeout(resolve, 3000, "nothing"))]);
const socket = url => new Promise((resolve, reject) => {
  const made = new WebSocket(url);
  made.onopen = () => { made.send(session); resolve({type: "open"}); };
  made.onerror = reject;
});
const process = "/dm_env_rpc.v1.Environment/Process";
const post = (url, more) => fetch(url, {method: "POST", body: session, ...more});
const tried = [];
for (const host of at) {
  const url = "http://" + host + process;
  tried.push(
    fetch(url, {mode: "no-cors"}),
    post(url, {mode: "no-cors"}),
    post(url, {headers: {"content-type": "application/grpc"}}),
    fetch(url, {method: "PRI", body: session}),
    socket("ws://" + host + process));
  navigator.sendBeacon(url, session);
}
Promise.all(tried.map(settled)).then(
  outcomes => fetch("/done", {method: "POST", body: JSON.stringify(outcomes)}));
</script>"""


@contextlib.contextmanager
def page(contents: str) -> Iterator[tuple[int, queue.Queue[Any]]]:
    """Serves a page; yields the port, and what the page has reported."""
    done: queue.Queue[Any] = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(contents.encode())

        def do_POST(self) -> None:
            done.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, done
        finally:
            server.shutdown()
            thread.join()


def outcomes(folder: Path, port: int) -> list[str]:
    """What a page of another origin got for its requests to a port of this machine."""
    contents = PAGE.replace("PORT", str(port)).replace(
        "SESSION", base64.b64encode(SESSION).decode()
    )
    contents = contents.replace("HOSTS", json.dumps(["127.0.0.1", "localhost", "evil.test"]))
    chromium = installed("chromium")
    assert chromium is not None
    with page(contents) as (page_port, done):
        command = [chromium, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-port=0"]
        with subprocess.Popen(
            [*command, f"http://evil.test:{page_port}/"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as browser:
            try:
                found: list[str] = done.get(timeout=patience(60))
            finally:
                browser.kill()
    return found


@pytest.mark.parametrize("kind", ["http2", "grpc", "processes", "one file"])
def test_a_page_reaches_no_session(kind: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        if kind == "one file":
            address = stack.enter_context(one_file("tests.support.environments:Echo"))
            server = None
        else:
            options: Any = {"processes": 1} if kind == "processes" else {"transport": kind}
            server = stack.enter_context(serve(Echo, **options))
            address = server.address
        proxy = stack.enter_context(FaultProxy(address))
        found = outcomes(tmp_path, int(proxy.address.rpartition(":")[2]))
        assert set(found) <= {"error", "nothing"}, "no answer is one of HTTP"
        # At least a body that is a session, and a preflight, by each of the names.
        assert proxy.bytes_to_server > 3 * (len(SESSION) + 200)
        if server is not None:
            stats = server.stats()
            assert (stats.all_streams, stats.worlds, sum(stats.requests.values())) == (0, 0, 0)
            assert server.errors == []
        with make(address) as env:
            assert env.reset().first()
