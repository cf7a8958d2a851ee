"""A stand-in for Docker: a program `docker`, and the daemon that it asks.

Docker is not on every machine. A "container" of this daemon is a process of this machine, which
serves the Echo environment at the host's port that was mapped. The program passes its arguments to
the daemon, which is in the process of the test, and prints what that answers.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import signal
import socketserver
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.launch.processes import ROOT
from tests.support.ports import HeldPort

IMAGE = "owner/echo:latest"

_DOCKER = """#!{python} -IS
import base64, json, os, socket, sys
asked = dict(arguments=sys.argv[1:], variables=dict(), contents="")
for each in sys.argv[1:]:
    if each.startswith("--env-file="):
        with open(each.partition("=")[2]) as file:
            lines = file.read().splitlines()
        asked["variables"].update(line.split("=", 1) for line in lines)
    if each.startswith("--env="):
        name = each.partition("=")[2]
        asked["variables"][name] = os.environ[name]
if sys.argv[1] == "cp":
    asked["contents"] = base64.b64encode(sys.stdin.buffer.read()).decode()
host = os.environ["DOCKER_HOST"]
with socket.socket(socket.AF_UNIX) as connection:
    try:
        connection.connect(host[len("unix://"):])
    except OSError:
        sys.exit("Cannot connect to the Docker daemon at " + host)
    with connection.makefile("rwb") as answers:
        answers.write(json.dumps(asked).encode() + bytes([10]))
        answers.flush()
        for line in answers:
            stream, text = json.loads(line)
            if stream == "code":
                sys.exit(text)
            os.write(stream, text.encode())
sys.exit(1)
"""

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


_CREATE = argparse.ArgumentParser("create")
for _name in ("name", "label", "publish", "env-file", "memory", "entrypoint"):
    _CREATE.add_argument(f"--{_name}", default="")
_CREATE.add_argument("--env", action="append")
_CREATE.add_argument("image")
_CREATE.add_argument("command", nargs=argparse.REMAINDER)


class Container:
    """A process, created and not started at first.

    Attributes:
      options: those of `docker create`, with the image and the command.
      variables: those of its environment.
    """

    def __init__(self, options: argparse.Namespace, variables: dict[str, str], root: Path):
        self.name: str = options.name
        self.options = options
        self.variables = variables
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.root = root
        self.output = b""
        self.has_ended = threading.Event()

    def start(self) -> None:
        self._held = HeldPort()
        self.port = self._held.number
        command = [sys.executable, "-c", _PROGRAM, str(self.port), *self.options.command]
        if self.options.entrypoint:
            # The root folder is that of the files; the network has the mapped port only.
            command = [self.options.entrypoint, *self.options.command]
            command = [part.replace("0.0.0.0:50051", f"127.0.0.1:{self.port}") for part in command]
            command = [
                str(self.root) + part if part.startswith("/dm_") else part for part in command
            ]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.variables or None,
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
        host, _, inner = self.options.publish.partition("::")
        assert host == "127.0.0.1"
        is_mapped = is_mapped and self.port != 0
        mapped = [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}] if is_mapped else None
        status = "exited" if self.has_ended.is_set() else "running" if self.port else "created"
        ports = {f"{inner}/tcp": mapped}
        return {"State": {"Status": status}, "NetworkSettings": {"Ports": ports}}


class Daemon:
    """Answers the program at a unix socket.

    Attributes:
      host: for DOCKER_HOST.
      path: the folder of the program, for PATH.
      images: the ports that each image exposes.
      remote: images that can be pulled.
      containers: those that were created and not removed, by name.
      created: all that were created.
      slow: seconds that the creation of a container takes.
      refusal: why no container is created; empty to create them.
      maps: whether ports of containers are mapped.
      folder: where files are put that containers get.
      is_asked: set when a container is to be created.
      seen: the arguments that the program was called with.
    """

    def __init__(self, folder: Path):
        socket = folder / "docker.sock"
        self.folder = folder
        self.host = f"unix://{socket}"
        self.path = folder / "bin"
        self.path.mkdir()
        program = self.path / "docker"
        program.write_text(_DOCKER.replace("{python}", sys.executable))
        program.chmod(0o755)
        self.images: dict[str, list[str]] = {IMAGE: ["50051/tcp"]}
        self.remote: dict[str, list[str]] = {}
        self.containers: dict[str, Container] = {}
        self.created: list[Container] = []
        self.slow = 0.0
        self.refusal = ""
        self.maps = True
        self.is_asked = threading.Event()
        self.seen: list[list[str]] = []
        handler = type("Handler", (_Handler,), {"daemon": self})
        self._server = socketserver.ThreadingUnixStreamServer(str(socket), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for container in self.created:
            container.kill()


class _RefusedError(Exception):
    """What the program prints as an error."""


class _Handler(socketserver.StreamRequestHandler):
    daemon: Daemon

    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        arguments: list[str] = asked["arguments"]
        self.daemon.seen.append(arguments)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            try:
                code = _COMMANDS[arguments[0]](self, asked)
            except _RefusedError as error:
                self._say(2, f"{error}\n")
                code = 1
            self._say("code", code)

    def _say(self, stream: int | str, text: str | int) -> None:
        self.wfile.write(json.dumps([stream, text]).encode() + b"\n")
        self.wfile.flush()

    def _find(self, name: str) -> Container:
        found = self.daemon.containers.get(name)
        if found is None:
            raise _RefusedError(f"Error response from daemon: No such container: {name}")
        return found

    def version(self, asked: Any) -> int:
        self._say(1, "stand-in\n")
        return 0

    def image(self, asked: Any) -> int:
        name = asked["arguments"][2]
        name = name if ":" in name else f"{name}:latest"
        if name not in self.daemon.images:
            self._say(1, "[]\n")
            raise _RefusedError(f"Error response from daemon: No such image: {name}")
        ports: dict[str, Any] = {port: {} for port in self.daemon.images[name]}
        self._say(1, json.dumps([{"Config": {"ExposedPorts": ports}}]))
        return 0

    def pull(self, asked: Any) -> int:
        name = asked["arguments"][1]
        name = name if ":" in name else f"{name}:latest"
        if name not in self.daemon.remote:
            raise _RefusedError(f"Error response from daemon: no image {name} anywhere")
        self.daemon.images[name] = self.daemon.remote[name]
        self._say(1, "1.2: Pulling from owner/echo\n")
        layers = ("0123456789ab", "ba9876543210")
        for status in ("Pulling fs layer", "Download complete", "Pull complete"):
            for layer in layers:
                self._say(1, f"{layer}: {status}\n")
        self._say(1, "Digest: sha256:0123\n")
        return 0

    def create(self, asked: Any) -> int:
        self.daemon.is_asked.set()
        time.sleep(self.daemon.slow)  # It takes time to create one.
        if self.daemon.refusal:
            raise _RefusedError(f"Error response from daemon: {self.daemon.refusal}")
        options = _CREATE.parse_args(asked["arguments"][1:])
        container = Container(options, asked["variables"], self.daemon.folder)
        self.daemon.containers[container.name] = container
        self.daemon.created.append(container)
        self._say(1, f"{container.name[::-1]}\n")
        return 0

    def cp(self, asked: Any) -> int:
        _, source, target = asked["arguments"]
        assert (source, target) == ("-", f"{self._find(target.partition(':')[0]).name}:/")
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(asked["contents"]))) as archive:
            for entry in archive:
                contents = archive.extractfile(entry)
                assert contents is not None
                (self.daemon.folder / entry.name).write_bytes(contents.read())
        return 0

    def start(self, asked: Any) -> int:
        assert asked["arguments"][1] == "--attach"
        container = self._find(asked["arguments"][2])
        container.start()
        sent = 0
        has_ended = False
        while not has_ended:
            has_ended = container.has_ended.wait(0.05)
            data = container.output[sent:]
            sent += len(data)
            if data:
                self._say(1, data.decode())
        return container.code

    def container(self, asked: Any) -> int:
        found = self._find(asked["arguments"][2])
        self._say(1, json.dumps([found.inspected(self.daemon.maps)]))
        return 0

    def rm(self, asked: Any) -> int:
        found = self._find(asked["arguments"][-1])
        found.kill()
        self.daemon.containers.pop(found.name, None)
        self._say(1, f"{found.name}\n")
        return 0


_COMMANDS: dict[str, Callable[[_Handler, Any], int]] = {
    "version": _Handler.version, "image": _Handler.image, "pull": _Handler.pull,
    "create": _Handler.create, "cp": _Handler.cp, "start": _Handler.start,
    "container": _Handler.container, "rm": _Handler.rm,
}  # fmt: skip
