"""The process that a container belongs to; `containers.py` starts it, with a request in JSON.

It prints what the container prints, exits as the container does, and removes it. If its lifeline is
closed, or it gets SIGTERM, it does so at once. Docker's own removal at the end of a container would
take away the output and the exit code of one that ends soon.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from types import FrameType
from typing import Any, NoReturn

from dm_env_rpc_client.runtime.children import Parent

__all__: list[str] = []

LABEL = "dm-env-rpc-client"

_CREATE_SECONDS = 60.0
"""How long the daemon may take to create a container that nobody waits for any more."""
_PAUSE_SECONDS = 0.1
_TRIES = 50


class _EndError(Exception):
    """The container is to be removed."""


def _main(request: dict[str, Any]) -> int:
    import docker
    import docker.errors
    import requests.exceptions

    signal.signal(signal.SIGTERM, _end)
    parent = Parent.from_start()
    # Its name is known before it exists, so that it can be removed whatever became of the request.
    name = f"{LABEL}-{uuid.uuid4().hex}"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    is_creating = False
    try:
        client = docker.from_env()
        inner = f"{request['port']}/tcp"
        is_creating = True
        container = client.containers.create(
            request["image"],
            request["command"],
            name=name,
            environment=request["environment"],
            ports={inner: ("127.0.0.1", None)},
            labels={LABEL: str(request["owner"])},
            **request["options"],
        )
        is_creating = False
        container.start()
        container.reload()
        bound = container.ports.get(inner)
        if bound:
            _tell(request["told"], f"127.0.0.1:{bound[0]['HostPort']}")
        for text in container.logs(stream=True, follow=True):
            os.write(1, text)
        return int(container.wait()["StatusCode"])
    except _EndError:
        return 0
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        os.write(2, f"Docker refused: {error}\n".encode())
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _remove(name, _CREATE_SECONDS if is_creating else 0.0)


def _tell(path: str, text: str) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def _end_with(parent: Parent) -> None:
    parent.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise _EndError


def _remove(name: str, seconds: float) -> None:
    """Removes the container, also one that the daemon may still create within some seconds."""
    import docker
    import docker.errors
    import requests.exceptions

    deadline = time.monotonic() + seconds
    tries_left = _TRIES
    client = docker.from_env()
    while tries_left:
        try:
            client.api.remove_container(name, v=True, force=True)
            return
        except docker.errors.NotFound:
            if time.monotonic() > deadline:
                return
        except (docker.errors.APIError, requests.exceptions.RequestException):
            tries_left -= 1  # The daemon is busy with it.
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
