"""The process that owns a container; `containers.py` starts it.

This process prints the container's output, exits with the container's exit code, and removes the
container. On SIGTERM, or when its lifeline is closed, this process removes the container
immediately. If this process is killed, its guard removes the container. Docker's automatic removal
would discard the output and exit code of a short-lived container.

The request is JSON in an environment variable, because other users can read command lines and a
container's variables may be secret. `docker` receives the container's variables in an unnamed
file. Values that do not fit the format of the file, such as strings with line breaks, are passed
in the environment of `docker`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from dm_env_rpc_client.launch.containers import REQUEST, docker
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.children import Guard, Parent, bound_output

LABEL = "dm-env-rpc-client"

_CREATE_SECONDS = 60.0
"""The time limit, in seconds, for the daemon to create a container, which is then removed."""
_MAP_SECONDS = 2.0
"""The time limit, in seconds, for the daemon to map the port of a running container."""
_ANSWER_SECONDS = 60.0
_END_AGAIN_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_TRIES = 50

_CREATED = b"created"


class _EndError(BaseException):
    """A request to remove the container, which `except Exception` must not catch."""


class _RefusedError(Exception):
    """A `docker` command failed; the message is the reason that Docker gave."""


def _main(request: dict[str, Any]) -> int:
    # Chosen before the container exists, so that it can be removed even if `create` is interrupted.
    name = f"{LABEL}-{uuid.uuid4().hex}"
    guard = Guard(lambda told: _remove(name, 0.0 if told == _CREATED else _CREATE_SECONDS))
    parent = Parent.from_start()
    seconds = 0.0
    try:
        signal.signal(signal.SIGTERM, _end)
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        threading.Thread(target=bound_output, daemon=True).start()
        seconds = _CREATE_SECONDS
        _create(name, request)
        seconds = 0.0
        guard.tell(_CREATED)
        if request["file"]:
            _run("cp", "-", f"{name}:/", contents=_archive(request["file"]))
        with _attached(name) as attached:
            address = _mapped(name, f"{request['port']}/tcp")
            if address is not None:
                os.write(request["address_pipe"], f"{address}\n".encode())
            return attached.wait()
    except _EndError:
        return 0
    except _RefusedError as error:
        os.write(2, f"Docker refused: {error}\n".encode())
        if "Error response from daemon" in str(error):
            seconds = 0.0  # The daemon has rejected the request and will not create it later.
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _remove(name, seconds)
        guard.dismiss()


def _create(name: str, request: dict[str, Any]) -> None:
    variables: dict[str, str] = request["environment"]
    broken = {key: value for key, value in variables.items() if not _fits_a_line(key, value)}
    with tempfile.TemporaryFile() as file:
        lines = (f"{key}={value}\n" for key, value in variables.items() if key not in broken)
        file.write("".join(lines).encode("utf-8", "surrogateescape"))
        file.seek(0)
        arguments = [
            "create",
            f"--name={name}",
            f"--label={LABEL}={request['owner']}",
            f"--publish=127.0.0.1::{request['port']}",
            f"--env-file=/dev/fd/{file.fileno()}",
            *(f"--env={key}" for key in broken),
            *request["options"],
            request["image"],
            *request["command"],
        ]
        _run(*arguments, variables=broken, descriptors=[file.fileno()])


def _fits_a_line(name: str, value: str) -> bool:
    """Whether a variable fits the env file format (UTF-8 lines, with `#` for comments)."""
    is_plain = re.fullmatch(r"[^#\s\udc80-\udcff][^\s\udc80-\udcff]*", name) is not None
    return is_plain and re.search(r"[\n\r\udc80-\udcff]", value) is None


def _run(
    *arguments: str,
    contents: bytes = b"",
    variables: dict[str, str] | None = None,
    descriptors: Sequence[int] = (),
    timeout: float | None = None,
) -> str:
    """Run `docker` and return its output.

    Raises:
      _RefusedError: the command failed or timed out.
    """
    try:
        finished = subprocess.run(
            docker(*arguments),
            input=contents,
            capture_output=True,
            check=False,
            env=children.variables(variables or {}),
            pass_fds=descriptors,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise _RefusedError(f"docker {arguments[0]} did not answer within {timeout:g} s") from None
    if finished.returncode:
        raise _RefusedError(finished.stderr.decode(errors="replace").strip())
    return finished.stdout.decode(errors="replace")


@contextlib.contextmanager
def _attached(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the container; a `docker` process relays its output and exit code."""
    process = subprocess.Popen(docker("start", "--attach", name), stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _archive(path: str) -> bytes:
    """Return a tar archive that contains the file `path` at its top level."""
    contents = io.BytesIO()
    with tarfile.open(fileobj=contents, mode="w") as archive:
        archive.add(path, os.path.basename(path), filter=_readable)
    return contents.getvalue()


def _readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.mode = 0o644
    return entry


def _mapped(name: str, inner: str) -> str | None:
    """Return the local address of a container's port, or None if the container has ended.

    Raises:
      _RefusedError: the daemon does not map the port.
    """
    deadline = time.monotonic() + _MAP_SECONDS
    while True:
        (found,) = json.loads(_run("container", "inspect", name, timeout=_ANSWER_SECONDS))
        bound = (found["NetworkSettings"].get("Ports") or {}).get(inner)
        if bound:
            return f"127.0.0.1:{bound[0]['HostPort']}"
        status = found["State"]["Status"]
        if status not in ("created", "running"):
            return None
        if status == "created":  # Not yet started: the time limit runs from the start.
            deadline = time.monotonic() + _MAP_SECONDS
        if time.monotonic() > deadline:
            raise _RefusedError(
                f"the container's port {inner} is not mapped to a port on this machine; if "
                "--network is among the options, leave it out"
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
    """Remove the container, waiting up to `seconds` for the daemon to create it."""
    deadline = time.monotonic() + seconds
    tries_left = _TRIES
    while tries_left:
        try:
            # Docker prints the names of removed containers. Versions differ in whether a missing
            # container is an error.
            if name in _run("rm", "--force", "--volumes", name, timeout=_ANSWER_SECONDS):
                return
            is_missing = True
        except _RefusedError as error:
            is_missing = "no such container" in str(error).lower()
        except Exception:
            is_missing = False
        if is_missing and time.monotonic() > deadline:
            return
        if not is_missing:
            tries_left -= 1  # The daemon is busy with the container, or unreachable.
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(_main(json.loads(os.environ.pop(REQUEST))))
