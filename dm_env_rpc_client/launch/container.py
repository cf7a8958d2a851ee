"""The process that a container belongs to; `containers.py` starts it, with a request in JSON.

It prints what the container prints, and exits as the container does. If its lifeline is closed, or
it gets SIGTERM, it removes the container.
"""

from __future__ import annotations

import json
import os
import queue
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

_REMOVE_SECONDS = 20.0
_PAUSE_SECONDS = 0.1


class _EndError(Exception):
    """The container is to be removed."""


def _main(request: dict[str, Any]) -> int:
    import docker
    import docker.errors

    signal.signal(signal.SIGTERM, _end)
    parent = Parent.from_start()
    # Its name is known before it exists, so that it can be removed whatever became of the request.
    name = f"{LABEL}-{uuid.uuid4().hex}"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        client = docker.from_env()
        inner = f"{request['port']}/tcp"
        container = client.containers.create(
            request["image"],
            request["command"],
            name=name,
            environment=request["environment"],
            ports={inner: ("127.0.0.1", None)},
            labels={LABEL: str(request["owner"])},
            # For the case that this process is killed; its exit code is asked for before.
            auto_remove=True,
            **request["options"],
        )
        codes: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=_await_code, args=(container, codes), daemon=True).start()
        container.start()
        container.reload()
        bound = container.ports.get(inner)
        if bound:
            _tell(request["told"], f"127.0.0.1:{bound[0]['HostPort']}")
        for text in container.logs(stream=True, follow=True):
            os.write(1, text)
        return codes.get(timeout=_REMOVE_SECONDS)
    except _EndError:
        return 0
    except (docker.errors.DockerException, queue.Empty) as error:
        os.write(2, f"Docker refused: {error}\n".encode())
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _remove(name)


def _await_code(container: Any, codes: queue.SimpleQueue[int]) -> None:
    codes.put(int(container.wait(condition="next-exit", timeout=None)["StatusCode"]))


def _tell(path: str, text: str) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def _end_with(parent: Parent) -> None:
    parent.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise _EndError


def _remove(name: str) -> None:
    """Removes the container, also one that the daemon is still creating."""
    import docker
    import docker.errors

    deadline = time.monotonic() + _REMOVE_SECONDS
    client = docker.from_env()
    looks = 3
    while looks and time.monotonic() < deadline:
        try:
            client.api.remove_container(name, v=True, force=True)
            return
        except docker.errors.NotFound:
            looks -= 1
        except docker.errors.APIError:
            pass  # The daemon is busy with it.
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(_main(json.loads(sys.argv[1])))
