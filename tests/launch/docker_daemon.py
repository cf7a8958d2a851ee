"""A stand-in for the Docker daemon: the part of its HTTP API that launching containers needs.

Docker is not on every machine. A "container" of this daemon is a process of this machine, which
serves the Echo environment at the host's port that was mapped. The client is Docker's own SDK.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import socketserver
import struct
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.launch.processes import ROOT
from tests.support.ports import HeldPort

IMAGE = "owner/echo:latest"

_PROGRAM = """
import os, sys
print("arguments:", *sys.argv[2:], flush=True)
if "fail" in sys.argv:
    sys.exit(3)
print("colour:", os.environ.get("COLOUR"), flush=True)
from dm_env_rpc_client.server import serve
from tests.support.environments import Echo
with serve(Echo, f"127.0.0.1:{sys.argv[1]}") as server:
    server.wait()
"""


class Container:
    """A process, created and not started at first."""

    def __init__(self, name: str, config: dict[str, Any]):
        self.id = name[::-1]
        self.name = name
        self.config = config
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.root = Path()
        self.output = b""
        self.has_ended = threading.Event()

    def start(self) -> None:
        self._held = HeldPort()
        self.port = self._held.number
        variables = dict(each.split("=", 1) for each in self.config.get("Env") or [])
        command = [sys.executable, "-c", _PROGRAM, str(self.port), *(self.config.get("Cmd") or [])]
        if self.config.get("Entrypoint"):
            # The root folder is that of the files; the network has the mapped port only.
            command = [*self.config["Entrypoint"], *self.config["Cmd"]]
            command = [part.replace("0.0.0.0:50051", f"127.0.0.1:{self.port}") for part in command]
            command = [
                str(self.root) + part if part.startswith("/dm_") else part for part in command
            ]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables or None,
        )  # fmt: skip
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.output += line
        self.process.wait()
        self._held.close()
        self.has_ended.set()

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.has_ended.wait(10)

    @property
    def code(self) -> int:
        assert self.process is not None
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    def inspected(self, is_mapped: bool) -> dict[str, Any]:
        ((inner, bound),) = self.config["HostConfig"]["PortBindings"].items()
        assert [each["HostIp"] for each in bound] == ["127.0.0.1"]
        is_mapped = is_mapped and self.port != 0
        mapped = [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}] if is_mapped else None
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Config": {"Tty": False, "Labels": self.config["Labels"]},
            "State": {"Status": "exited" if self.has_ended.is_set() else "running"},
            "NetworkSettings": {"Ports": {inner: mapped}},
        }


class Daemon:
    """Serves the API at a unix socket.

    Attributes:
      host: for DOCKER_HOST.
      images: the ports that each image exposes.
      remote: images that can be pulled.
      containers: those that were created and not removed, by name.
      created: all that were created.
      slow: seconds that the creation of a container takes.
      refusal: why no container is created; empty to create them.
      maps: whether ports of containers are mapped.
      folder: where files are put that containers get.
      is_asked: set when a container is to be created.
    """

    def __init__(self, folder: Path):
        path = folder / "docker.sock"
        self.folder = folder
        self.host = f"unix://{path}"
        self.images: dict[str, list[str]] = {IMAGE: ["50051/tcp"]}
        self.remote: dict[str, list[str]] = {}
        self.containers: dict[str, Container] = {}
        self.created: list[Container] = []
        self.slow = 0.0
        self.refusal = ""
        self.maps = True
        self.is_asked = threading.Event()
        handler = type("Handler", (_Handler,), {"daemon": self})
        self._server = socketserver.ThreadingUnixStreamServer(str(path), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for container in self.created:
            container.kill()

    def find(self, name: str) -> Container | None:
        for container in list(self.containers.values()):
            if name in (container.id, container.name):
                return container
        return None


class _Handler(BaseHTTPRequestHandler):
    daemon: Daemon

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        path = re.sub(r"^/v[\d.]+", "", url.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        size = int(self.headers.get("Content-Length") or 0)
        contents = self.rfile.read(size)
        body = json.loads(contents) if size and self.command != "PUT" else contents
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for pattern, method in _ROUTES:
                found = re.fullmatch(pattern, f"{self.command} {path}")
                if found is not None:
                    method(self, *found.groups(), query=query, body=body)
                    return
            self._send(501, {"message": f"the stand-in has no {self.command} {path}"})

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  # as http.server calls them

    def _send(self, status: int, answer: Any = None) -> None:
        data = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def version(self, query: Any, body: Any) -> None:
        self._send(200, {"Version": "stand-in", "ApiVersion": "1.44", "MinAPIVersion": "1.24"})

    def image(self, name: str, query: Any, body: Any) -> None:
        name = name if ":" in name else f"{name}:latest"
        if name not in self.daemon.images:
            self._send(404, {"message": f"No such image: {name}"})
            return
        ports: dict[str, Any] = {port: {} for port in self.daemon.images[name]}
        self._send(200, {"Id": "sha256:1", "RepoTags": [name], "Config": {"ExposedPorts": ports}})

    def pull(self, query: dict[str, str], body: Any) -> None:
        name = f"{query['fromImage']}:{query['tag']}"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        lines: Iterator[dict[str, Any]] = iter([{"error": f"no image {name} anywhere"}])
        if name in self.daemon.remote:
            self.daemon.images[name] = self.daemon.remote[name]
            lines = iter(
                {
                    "id": "layer", "status": "Downloading",
                    "progressDetail": {"current": done, "total": 100},
                }
                for done in (20, 70, 100)
            )  # fmt: skip
            self._chunk({"status": "Pulling from owner/echo"})
        for line in lines:
            self._chunk(line)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, line: dict[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\r\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def create(self, query: dict[str, str], body: dict[str, Any]) -> None:
        self.daemon.is_asked.set()
        time.sleep(self.daemon.slow)  # It takes time to create one.
        if self.daemon.refusal:
            self._send(400, {"message": self.daemon.refusal})
            return
        container = Container(query["name"], body)
        container.root = self.daemon.folder
        self.daemon.containers[container.name] = container
        self.daemon.created.append(container)
        self._send(201, {"Id": container.id, "Warnings": []})

    def archive(self, name: str, query: dict[str, str], body: bytes) -> None:
        assert query["path"] == "/"
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            for entry in archive:
                contents = archive.extractfile(entry)
                assert contents is not None
                (self.daemon.folder / entry.name).write_bytes(contents.read())
        self._send(200)

    def container(self, name: str, action: str, query: Any, body: Any) -> None:
        found = self.daemon.find(name)
        if found is None:
            self._send(404, {"message": f"No such container: {name}"})
        elif action == "start":
            found.start()
            self._send(204)
        elif action == "json":
            self._send(200, found.inspected(self.daemon.maps))
        elif action == "wait":
            found.has_ended.wait()
            self._send(200, {"StatusCode": found.code})
        elif action == "logs":
            self._logs(found)
        else:
            found.kill()
            self.daemon.containers.pop(found.name, None)
            self._send(204)

    def _logs(self, container: Container) -> None:
        self.send_response(200)
        self.end_headers()
        sent = 0
        has_ended = False
        while not has_ended:
            has_ended = container.has_ended.wait(0.05)
            data = container.output[sent:]
            sent += len(data)
            if data:
                # https://docs.docker.com/reference/api/engine, "Stream format" of attach
                self.wfile.write(struct.pack(">BxxxL", 1, len(data)) + data)
                self.wfile.flush()

    def remove(self, name: str, query: Any, body: Any) -> None:
        self.container(name, "remove", query, body)


_ROUTES: list[tuple[str, Callable[..., None]]] = [
    ("GET /version", _Handler.version),
    ("GET /images/(.+)/json", _Handler.image),
    ("POST /images/create", _Handler.pull),
    ("POST /containers/create", _Handler.create),
    ("(?:GET|POST) /containers/([^/]+)/(start|json|wait|logs)", _Handler.container),
    ("PUT /containers/([^/]+)/archive", _Handler.archive),
    ("DELETE /containers/([^/]+)", _Handler.remove),
]
