"""The guide's settings for proxies, in proxies that run; and what their limits look like."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import ConnectionLostError, ProtocolError, Tls, make
from dm_env_rpc_client.environment.batched import BatchedEnvironment
from dm_env_rpc_client.server import Server, serve
from tests.support.certificates import Authority
from tests.support.groups import installed
from tests.support.ports import HeldPort
from tests.support.programs import ROOT
from tests.support.scripted import settles
from tests.travelling.environments.of_dm_env import ENDLESS, Timed

TOKEN = "secret"
GUIDE = ROOT / "docs" / "how-to" / "proxies.md"
SIZE = 50_000
CAUSE = "a proxy's limit or timeout can be the cause"

each_proxy = pytest.mark.parametrize(
    "proxy",
    [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("nginx", "haproxy")],
)
each_transport = pytest.mark.parametrize("transport", ["http2", "grpc"])


SPEC = {"value": specs.Array((SIZE,), np.float32)}


def wide() -> Timed:
    """Observes its action, which is large."""
    nothing = {"value": np.zeros(SIZE, np.float32)}
    return Timed(0, ENDLESS, SPEC, lambda env: env.action or nothing, SPEC)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(wide, token=TOKEN) as server:
        yield server
        assert server.errors == []


class Proxies:
    """Proxies with the guide's settings.

    Args:
      folder: for their files.
      upstream: the address of the server.
    """

    def __init__(self, folder: Path, upstream: str):
        self._folder, self._upstream = folder, upstream
        authority = Authority(folder / "authority")
        issued = authority.issue("server")
        self.credentials = Tls(ca=authority.ca)
        self._files = {"server.crt": issued.cert, "server.key": issued.key}
        self._files["server.pem"] = folder / "server.pem"
        self._files["server.pem"].write_text(issued.cert.read_text() + issued.key.read_text())

    @contextlib.contextmanager
    def running(self, name: str, *changes: tuple[str, str]) -> Iterator[str]:
        """Yields the address of a proxy.

        Args:
          name: the program.
          *changes: patterns of lines of the guide's settings, and what replaces these.
        """
        with HeldPort() as held:
            yield from self._run(name, held.number, changes)

    def _run(self, name: str, port: int, changes: Sequence[tuple[str, str]]) -> Iterator[str]:
        pattern = rf"^## {name}\n.*?```\w+\n(.*?)```"
        (settings,) = re.findall(pattern, GUIDE.read_text(), re.DOTALL | re.MULTILINE)
        listening = {"nginx": (r"listen 8443", f"listen 127.0.0.1:{port}"),
                     "haproxy": (r"bind :8443", f"bind 127.0.0.1:{port}")}  # fmt: skip
        here = [(r"127\.0\.0\.1:5001", self._upstream.replace("localhost", "127.0.0.1"))]
        here += [
            (f"/etc/{name}/{re.escape(file)}", str(self._files[file]))
            for file in re.findall(rf"/etc/{name}/(\S+?)[;\s]", settings)
        ]
        for pattern, replacement in (*here, listening[name], *changes):
            settings, count = re.subn(pattern, replacement, settings)
            assert count, pattern
        place = self._folder / f"{name}-{port}"
        place.mkdir()
        if name == "nginx":
            kept = "".join(
                f"{kind}_temp_path {place}/{kind};\n"
                for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            settings = settings.replace("http {", f"http {{\naccess_log off;\n{kept}")
            settings = f"daemon off;\nmaster_process off;\npid {place}/pid;\n{settings}"
        file = place / "settings"
        file.write_text(settings)
        arguments = {
            "nginx": ["-p", str(place), "-e", str(place / "errors"), "-c", str(file)],
            "haproxy": ["-db", "-f", str(file)],
        }[name]
        program = installed(name)
        assert program is not None
        with subprocess.Popen([program, *arguments]) as process:
            try:
                assert settles(lambda: process.poll() is not None or listens(port))
                assert process.poll() is None
                yield f"localhost:{port}"
            finally:
                process.terminate()


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10).close()
        return True
    return False


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Proxies:
    return Proxies(tmp_path_factory.mktemp("proxies"), server.address)


@pytest.fixture
def opened(proxies: Proxies) -> Callable[..., Any]:
    return lambda address, **options: make(
        address, credentials=proxies.credentials, token=TOKEN, request_timeout=60, **options
    )


@each_transport
@each_proxy
def test_the_settings_of_the_guide_let_long_streams_through(
    proxies: Proxies, opened: Callable[..., Any], proxy: str, transport: str
) -> None:
    with proxies.running(proxy) as address, opened(address, transport=transport) as env:
        env.reset()
        for number in range(20):  # 4 MB: nginx ends a stream after one by itself.
            value = np.full(SIZE, number, np.float32)
            assert (env.step({"value": value}).observation["value"] == number).all()


ENDS_CONNECTIONS = (r"keepalive_requests .*;", "keepalive_requests 3;")
"""After so many streams nginx says GOAWAY on a connection."""


@pytest.mark.parametrize(
    ("proxy", "changes"),
    [
        pytest.param("nginx", [], marks=pytest.mark.nginx),
        pytest.param("nginx", [ENDS_CONNECTIONS], marks=pytest.mark.nginx),
        pytest.param("haproxy", [], marks=pytest.mark.haproxy),
    ],
)
def test_many_environments_go_through_one_proxy(
    proxies: Proxies, proxy: str, changes: list[tuple[str, str]]
) -> None:
    with (
        proxies.running(proxy, *changes) as address,
        BatchedEnvironment(
            address,
            8,
            num_batches=0,
            credentials=proxies.credentials,
            token=TOKEN,
            request_timeout=60,
        ) as envs,
    ):
        envs.reset()
        value = np.arange(8, dtype=np.float32)[:, None].repeat(SIZE, 1)
        assert (envs.step({"value": value}).observation["value"] == value).all()


def ends(env: Any, pause: float) -> Exception:
    """Steps until the stream ends, and returns its error."""
    env.reset()
    for _ in range(20):
        try:
            env.step({"value": np.zeros(SIZE, np.float32)})
        except (ConnectionLostError, ProtocolError) as error:
            return error
        time.sleep(pause)  # The time in which nothing is sent ends the stream.
    pytest.fail("the stream goes on")


LIMITS = {
    "requests": ("nginx", [(r"client_max_body_size .*;", "client_max_body_size 1m;")], 0.0),
    "a pause": ("nginx", [(r"grpc_read_timeout .*;", "grpc_read_timeout 500ms;")], 1.2),
    "a pause of the client": (
        "nginx",
        [(r"client_body_timeout .*;", "client_body_timeout 500ms;")],
        1.2,
    ),
    "a pause in haproxy": ("haproxy", [(r"(timeout (client|server)) .*", r"\1 500ms")], 1.2),
}


@each_transport
@pytest.mark.parametrize(
    "limit",
    [pytest.param(name, marks=getattr(pytest.mark, LIMITS[name][0])) for name in LIMITS],
)
def test_what_a_limit_ends_names_the_proxy(
    proxies: Proxies, opened: Callable[..., Any], limit: str, transport: str
) -> None:
    name, changes, pause = LIMITS[limit]
    with proxies.running(name, *changes) as address:
        env = opened(address, transport=transport)
        assert CAUSE in str(ends(env, pause))
        env.close()
