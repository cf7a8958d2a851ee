"""The process that a container belongs to; `containers.py` starts it.

It prints what the container prints, exits as the container does, and removes it. If its lifeline is
closed, or it gets SIGTERM, it does so at once; if it is killed, its guard does. Docker's own
removal at the end of a container would take away the output and the exit code of one that ends
soon.

The request is JSON in a variable of the environment, since other users can read command lines, and
the variables of a container may be secret.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tarfile
import threading
import time
import uuid
from types import FrameType
from typing import Any, NoReturn

import docker
import docker.errors
import requests.exceptions

from dm_env_rpc_client.launch.containers import REQUEST
from dm_env_rpc_client.system.children import Guard, Parent, bound_output

LABEL = "dm-env-rpc-client"

_CREATE_SECONDS = 60.0
"""How long the daemon may take to create a container that nobody waits for any more."""
_MAP_SECONDS = 2.0
"""How long the daemon may take to map the port of a container that runs."""
_END_AGAIN_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_TRIES = 50

_CREATED = b"created"
_REFUSALS = (docker.errors.DockerException, requests.exceptions.RequestException)


class _EndError(BaseException):
    """The container is to be removed. What handles errors of any kind must not catch it."""


def _main(request: dict[str, Any]) -> int:
    # Its name is known before it exists, so that it can be removed whatever became of the request.
    name = f"{LABEL}-{uuid.uuid4().hex}"
    guard = Guard(lambda told: _remove(name, 0.0 if told == _CREATED else _CREATE_SECONDS))
    parent = Parent.from_start()
    seconds = 0.0
    try:
        signal.signal(signal.SIGTERM, _end)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        threading.Thread(target=bound_output, daemon=True).start()
        seconds = _CREATE_SECONDS
        container = _created(name, request)
        seconds = 0.0
        guard.tell(_CREATED)
        if request["file"]:
            container.put_archive("/", _archive(request["file"]))
        container.start()
        address = _mapped(container, f"{request['port']}/tcp")
        if address is not None:
            os.write(request["address_pipe"], f"{address}\n".encode())
        for text in container.logs(stream=True, follow=True):
            os.write(1, text)
        return int(container.wait()["StatusCode"])
    except _EndError:
        return 0
    except _REFUSALS as error:
        os.write(2, f"Docker refused: {error}\n".encode())
        if isinstance(error, docker.errors.APIError) and error.is_client_error():
            seconds = 0.0  # The daemon has answered: it will not create it any more.
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _remove(name, seconds)
        guard.dismiss()


def _created(name: str, request: dict[str, Any]) -> Any:
    return docker.from_env().containers.create(
        request["image"],
        request["command"],
        name=name,
        environment=request["environment"],
        ports={f"{request['port']}/tcp": ("127.0.0.1", None)},
        labels={LABEL: str(request["owner"])},
        **request["options"],
    )


def _archive(path: str) -> bytes:
    """Returns a file as a tar archive, in which it has no folder."""
    contents = io.BytesIO()
    with tarfile.open(fileobj=contents, mode="w") as archive:
        archive.add(path, os.path.basename(path), filter=_readable)
    return contents.getvalue()


def _readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.mode = 0o644
    return entry


def _mapped(container: Any, inner: str) -> str | None:
    """Returns where a port of a container is on this machine; None if the container has ended.

    Raises:
      DockerException: the daemon maps no port.
    """
    deadline = time.monotonic() + _MAP_SECONDS
    while True:
        container.reload()
        bound = container.ports.get(inner)
        if bound:
            return f"127.0.0.1:{bound[0]['HostPort']}"
        if container.status not in ("created", "running"):
            return None
        if time.monotonic() > deadline:
            raise docker.errors.DockerException(
                f"the port {inner} of the container has none on this machine; is there a "
                "network_mode among the options?"
            )
        time.sleep(_PAUSE_SECONDS)


def _end_with(parent: Parent) -> None:
    parent.wait()
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_END_AGAIN_SECONDS)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise _EndError


def _remove(name: str, seconds: float) -> None:
    """Removes the container, also one that the daemon may still create within some seconds."""
    import docker

    deadline = time.monotonic() + seconds
    tries_left = _TRIES
    while tries_left:
        try:
            docker.from_env().api.remove_container(name, v=True, force=True)
            return
        except docker.errors.NotFound:
            if time.monotonic() > deadline:
                return
        except _REFUSALS:
            tries_left -= 1  # The daemon is busy with it, or cannot be reached.
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(_main(json.loads(os.environ.pop(REQUEST))))
