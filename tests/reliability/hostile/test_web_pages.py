"""What a web page in a browser can send begins no session at a plaintext server on loopback.

Browsers speak HTTP/2 over TLS only. What a page can send without TLS is HTTP/1.1, which the server
refuses at its first line. So the server need not look at `:authority` or `origin`, which proxies
and port forwarding may set to any name.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.transports.net import status
from tests.support.environments import Echo
from tests.support.one_file import one_file
from tests.transports import frames
from tests.transports.raw_client import RawClient, request, requests

pytestmark = pytest.mark.row(40)

TRANSPORTS = ["http2"]

# A whole session over HTTP/2, as a native client would begin it: it creates a world.
SESSION = frames.PREFACE + frames.settings() + request(1) + requests(1, b"\x0a\x00", end=True)

# How a page's `fetch`, beacon, preflight and WebSocket begin, and an upgrade to HTTP/2, which no
# browser sends. What follows is a name, and a body that is a session.
LINES = [
    "GET {} HTTP/1.1",
    "POST {} HTTP/1.1\r\nContent-Type: text/plain",
    "PRI {} HTTP/1.1",
    "OPTIONS {} HTTP/1.1\r\nAccess-Control-Request-Method: POST",
    "GET {} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket",
    "GET {} HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA",
]


@pytest.mark.parametrize("kind", ["http2", "grpc", "processes", "one file"])
def test_a_page_reaches_no_session(kind: str) -> None:
    options: Any = {"processes": 1} if kind == "processes" else {"transport": kind}
    with contextlib.ExitStack() as stack:
        if kind == "one file":
            address = stack.enter_context(one_file("tests.support.environments:Echo"))
        else:
            server = stack.enter_context(serve(Echo, **options))
            address = server.address
        for line in LINES:
            first = line.format(status.PROCESS)
            head = f"{first}\r\nHost: evil.test\r\nContent-Length: {len(SESSION)}\r\n\r\n"
            with RawClient(address, greets=False) as client:
                client.send(head.encode() + SESSION)
                assert client.read_to_the_end()
                assert not client.answers(1)
        if kind != "one file":
            stats = server.stats()
            assert (stats.all_streams, stats.worlds, sum(stats.requests.values())) == (0, 0, 0)
            assert server.errors == []
        with make(address) as env:
            assert env.reset().first()
