"""Servers in Docker containers, launched with the `docker` command.

A separate process, `container_process.py`, owns the container: it creates the container, copies
its output, and removes it when the container or the launching process ends for any reason. The
owning process exists before the container, so killing the launching process at any moment leaves
no container behind. If the owning process is killed, its guard (`system.children.Guard`) removes
the container.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from dm_env_rpc_client import arguments
from dm_env_rpc_client.client.connect_options import ConnectOptions, LaunchedKeywords
from dm_env_rpc_client.errors import LaunchError, SpecError
from dm_env_rpc_client.launch import standalone
from dm_env_rpc_client.launch.launched import Launch, check_startable
from dm_env_rpc_client.launch.processes import START_SECONDS, UNBUFFERED, asked, check_process
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.waiting import Deadline

if TYPE_CHECKING:
    from typing_extensions import Unpack

REQUEST = "DM_ENV_RPC_CONTAINER"
"""The environment variable that contains the request for `container_process.py`."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""A callback that receives the progress of a pull: the activity, the number of finished layers,
and the total number of layers."""

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.02

_OWN_OPTIONS = re.compile(r"--(name|env|env-file|publish|label|rm)(?![\w-])|-[epl]")
"""The options of `docker create` that are reserved for this module."""

_ANSWER_SECONDS = 60.0
"""The time limit, in seconds, for an answer from the Docker daemon."""

_STANDALONE_PORT = 50051
"""The default port of the standalone server in a container."""

_STOP_SECONDS = 75.0
"""The time limit, in seconds, for stopping a container that the daemon may still be creating."""


def from_docker(
    image: str,
    command: Sequence[str] = (),
    *,
    target: str | None = None,
    python: str = "python3",
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = START_SECONDS,
    progress: Progress | None = None,
    options: Sequence[str] = (),
    **connecting: Unpack[LaunchedKeywords],
) -> Launch:
    """Start a server in a container, and wait until the server answers.

    A missing image is pulled. Docker maps the container's port to a free port on the loopback
    interface. The container's label `dm-env-rpc-client` holds the id of this process. The container
    is removed when the `Launch` is closed or this process ends, even if the process is killed.
    `logs` returns the container's output, even after the container has ended.

    Args:
      image: the name of the image, with a tag or a digest (default: `:latest`).
      command: arguments for the entry point of the image; `{port}` in them is replaced by `port`.
      target: MODULE:NAME of the environment's factory, for an image without a server: the server in
        `standalone` is copied into the container and replaces the entry point. The image needs
        Python 3.6 or later and NumPy.
      python: the interpreter in the image that runs `target`.
      port: the port on which the server listens, on all interfaces of the container. None selects
        the only TCP port that the image exposes, or 50051 with `target`.
      env: environment variables of the container. PYTHONUNBUFFERED defaults to 1, as for
        `from_process`.
      timeout: time limit, in seconds, for the server to answer once the image is present; None for
        no limit.
      progress: called while the image is pulled; None to log the pull at level INFO.
      options: further options of `docker create`, such as `["--memory=1g", "--gpus=all"]`, except
        the reserved `--name`, `--env`, `--publish`, `--label` and `--rm`.
      **connecting: arguments of `connect` for the connection that waits for the first answer, such
        as `token`.

    Returns:
      The running server. Its `address` is on the loopback interface.

    Raises:
      LaunchError: the `docker` command, its daemon or the image is missing; or the container ended,
        or did not answer in time. The message includes the container's output.
      SpecError: an argument has the wrong type or is out of range, the port is neither given nor
        exposed by the image, an option is reserved, or a string cannot be passed to a program (see
        `from_process`).
    """
    timeout = arguments.seconds("timeout", timeout, none=arguments.NO_LIMIT)
    connect_options = ConnectOptions(**connecting)
    arguments.text("image", image, expected="the name of an image")
    arguments.names("command", command, expected="a list of arguments")
    arguments.text("target", target, expected="a string MODULE:NAME", none="None")
    arguments.text("python", python, expected="the path of an interpreter in the image")
    port = arguments.count("port", port, most=65535, none="None for the one of the image")
    check_process(env)
    arguments.function("progress", progress, none="None")
    arguments.names("options", options, expected="a list of options of `docker create`")
    check_startable([image, *command, target, python, *options], env)
    own = sorted({found[0] for each in options if (found := _OWN_OPTIONS.match(each))})
    if own:
        raise SpecError(
            f"from_docker sets {', '.join(own)} itself; use env= for variables and "
            "port= for the port"
        )
    exposed = _have_image(image, progress)
    if target is not None:
        port = port or _STANDALONE_PORT
        options = [f"--entrypoint={python}", *options]
        place = f"/{os.path.basename(standalone.FILE)}"
        command = [place, target, "--address", "0.0.0.0:{port}", "--insecure"]
    inside = _inner_port(image, port, exposed)
    reading, writing = os.pipe()
    request = {
        "image": image,
        "command": [part.replace("{port}", str(inside)) for part in command],
        "port": inside,
        "environment": {**UNBUFFERED, **(env or {})},
        "options": list(options),
        "owner": os.getpid(),
        "file": None if target is None else standalone.FILE,
        "address_pipe": writing,
    }
    named = shlex.join([f"docker:{image}", *command])
    deadline = Deadline.after(timeout)
    with open(reading, "rb") as address:
        start = functools.partial(_start_keeper, request)
        launch = Launch(start, named, "", connect_options, _STOP_SECONDS)
        try:
            launch.address = _mapped_address(address, launch, deadline, timeout)
            launch.wait_until_ready(deadline.remaining, timeout)
        except BaseException:
            launch.close()
            raise
    return launch


def _start_keeper(request: Mapping[str, Any], output: IO[bytes]) -> subprocess.Popen[bytes]:
    writing = request["address_pipe"]
    with open(writing, "wb"):  # An open copy here would hide the keeper's end from the reader.
        return children.start(
            [sys.executable, "-m", "dm_env_rpc_client.launch.container_process"],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process, which then ends the container.
            env=children.variables({REQUEST: json.dumps(request)}),
            pass_fds=(writing,),
        )


def _mapped_address(
    address: IO[bytes], launch: Launch, deadline: Deadline, timeout: float | None
) -> str:
    """Wait for `container_process.py` to report the server's address."""
    poll = select.poll()
    poll.register(address, select.POLLIN)
    while not (poll.poll(_LOOK_SECONDS * 1000) and (line := address.readline())):
        launch.check_running()
        if deadline.has_passed:
            raise launch.error(f"did not start within {timeout:g} s")
    return line.decode().strip()


def docker(*arguments: str) -> list[str]:
    """Return the `docker` command line with the given arguments.

    Raises:
      LaunchError: `docker` is not installed.
    """
    found = shutil.which("docker")
    if found is None:
        text = "cannot be started, for lack of Docker: there is no program docker in PATH"
        raise LaunchError(text, shlex.join(["docker", *arguments]), None, "")
    return [found, *arguments]


def _have_image(image: str, progress: Progress | None) -> list[str]:
    """Pull an image if it is missing, and return its exposed ports, such as "80/tcp"."""
    code, printed, said = _ask(image, "image", "inspect", image)
    if code:
        code, _, said = _ask(image, "version", "--format={{.Server.Version}}")
        if code:
            reason = f"cannot be started, for lack of Docker: {said.strip()}"
            raise LaunchError(reason, image, None, "")
        _pull(image, progress)
        code, printed, said = _ask(image, "image", "inspect", image)
        if code:
            raise LaunchError(f"has no image: {said.strip()}", image, None, "")
    (found,) = json.loads(printed)
    return list((found.get("Config") or {}).get("ExposedPorts") or ())


def _ask(image: str, *arguments: str) -> tuple[int, str, str]:
    return asked(docker(*arguments), image, "start: Docker did not answer {}", _ANSWER_SECONDS)


def _pull(image: str, progress: Progress | None) -> None:
    _log.info("pulling the image %s", image)
    with subprocess.Popen(
        docker("pull", image), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, errors="replace", start_new_session=True,
        env=children.variables({}),
    ) as pulling:  # fmt: skip
        assert pulling.stdout is not None
        try:
            last = _follow(pulling.stdout, progress)
        except BaseException:
            os.killpg(pulling.pid, signal.SIGKILL)
            raise
    if pulling.returncode:
        raise LaunchError(f"has no image: {last}", image, None, "")


def _follow(lines: Iterable[str], progress: Progress | None) -> str:
    """Report a pull's progress from the `lines` that Docker prints, and return the last line."""
    layers: dict[str, bool] = {}
    line = ""
    for line in lines:
        layer, _, status = line.strip().partition(": ")
        if status and re.fullmatch(r"[0-9a-f]{12}", layer):
            layers[layer] = status in ("Pull complete", "Already exists")
        if progress is not None:
            progress(status or layer, sum(layers.values()), len(layers))
    return line.strip()


def _inner_port(image: str, port: int | None, exposed: Sequence[str]) -> int:
    if port is not None:
        return port
    tcp = [int(each.partition("/")[0]) for each in exposed if not each.endswith("/udp")]
    if len(tcp) != 1:
        raise SpecError(
            f"expected the image {image} to expose exactly one TCP port, got "
            f"{', '.join(map(str, tcp)) or 'none'}; pass the port of its server to from_docker as "
            "port=, or EXPOSE only that port in the Dockerfile"
        )
    return tcp[0]
