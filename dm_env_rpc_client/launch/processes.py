"""Servers in local processes, started from any command or from an environment in Python."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Literal

from dm_env_rpc_client import arguments
from dm_env_rpc_client.client.connect_options import ConnectOptions, LaunchedKeywords
from dm_env_rpc_client.errors import LaunchError, SpecError
from dm_env_rpc_client.launch import standalone
from dm_env_rpc_client.launch.launched import Launch, check_startable
from dm_env_rpc_client.launch.ports import Port
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.waiting import Deadline

if TYPE_CHECKING:
    from typing_extensions import Unpack

START_SECONDS = 60.0
"""The default time limit, in seconds, for a launched server to answer."""

UNBUFFERED: Mapping[str, str] = MappingProxyType({"PYTHONUNBUFFERED": "1"})
"""The variables that make a Python program write its output immediately, even to a file."""

_HELD_ATTEMPTS, _ATTEMPTS = 2, 4

_PORT, _SOCKET = "{port}", "{socket}"

_OLDEST = (3, 6)
"""The oldest Python version supported by the standalone server."""

_LEAST_SECONDS = 0.05
"""The minimum time limit, in seconds, for a server to answer, even if the check of its interpreter
has used up the timeout."""

_WHAT_IT_HAS = """
import sys
print(sys.version_info[0]), print(sys.version_info[1])
if sys.version_info < (3, 4):
    print(False)
else:
    import importlib.util
    print(importlib.util.find_spec("dm_env_rpc_client") is not None)
"""


def from_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = START_SECONDS,
    address: str | None = None,
    **connecting: Unpack[LaunchedKeywords],
) -> Launch:
    """Start a command that runs a server, and wait until the server answers.

    `{port}` in the command, the address and the values of `env` becomes a free port on the
    loopback interface, and `{socket}` becomes the path of a unix socket in a new folder that only
    this user can open. `{socket}` avoids races for ports. With `{port}`, this process never
    assigns a port to two servers at once and keeps it from programs that request any free port; if
    another program binds this very port just before the server does, the server is restarted on
    another port, up to four times.

    The command must stay in the foreground. When the `Launch` ends, the command and its child
    processes receive SIGTERM, and SIGKILL 5 s later, even if this process is killed. A process that
    leaves the command's process group is the exception.

    Args:
      argv: the program and its arguments.
      env: environment variables added to those of this process. PYTHONUNBUFFERED defaults to 1, so
        that `logs` returns a Python program's output immediately.
      cwd: the working directory; None for that of this process.
      timeout: time limit, in seconds, for the server to answer; None for no limit.
      address: the server's address; None for `localhost:{port}` or `unix:{socket}`, depending on
        the command.
      **connecting: arguments of `connect` for the connection that waits for the first answer, such
        as `token`.

    Returns:
      The running server.

    Raises:
      LaunchError: the server ended, or did not answer in time; the message includes its output.
      SpecError: an argument has the wrong type or is out of range; neither `address` nor the
        command specifies an address; a string contains a NUL byte or cannot be encoded; or the
        name of a variable is empty or contains "=". Nothing was started.
      For invalid arguments in `connecting`, the same errors as `connect`.
    """
    timeout = arguments.seconds("timeout", timeout, none=arguments.NO_LIMIT)
    options = ConnectOptions(**connecting)
    arguments.text("address", address, none="None for what the command says")
    check_process(env, cwd)
    folder = None if cwd is None else os.fspath(cwd)
    command = _Command(list(_checked_argv(argv)), dict(env or {}), folder, address or "")
    if not address:
        command = dataclasses.replace(command, address=command.default_address())
    check_startable([*command.argv, command.cwd, command.address], env)
    deadline = Deadline.after(timeout)
    if not command.has(_PORT):
        return _start(command, None, deadline, timeout, options)
    for attempt in range(1, _ATTEMPTS + 1):
        port = Port(is_held=attempt <= _HELD_ATTEMPTS)
        try:
            return _start(command, port, deadline, timeout, options)
        except LaunchError as error:
            port.stop_holding()
            has_ended = error.exit_code is not None
            lacks_port = port.is_lost or (has_ended and port.was_taken(error.logs))
            if not lacks_port or attempt == _ATTEMPTS or deadline.has_passed:
                raise
        finally:
            # No longer needed: the server itself holds the port now, or has ended.
            port.close()
    raise AssertionError("the last attempt must return or raise")


def from_python(
    reference: str,
    *,
    python: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = START_SECONDS,
    thread: Literal["main"] | None = None,
) -> Launch:
    """Serve an environment in a separate Python process, on a unix socket.

    The process has the same module path as this one. Each world has its own environment; the
    settings for creating a world are the arguments of the factory, as with `server.serve`.

    With `python`, the process runs another interpreter (3.6 or later), such as that of a conda
    environment, with the modules of that interpreter and of the working directory. If this package
    is installed there, its server runs; otherwise, the standalone server runs, which needs NumPy.

    Args:
      reference: MODULE:NAME of the environment's factory: a class or another callable, such as
        "my_envs:Walker". It cannot be in `__main__`.
      python: the interpreter; None for that of this process.
      env: environment variables added to those of this process.
      cwd: the working directory; None for that of this process.
      timeout: time limit, in seconds, for the server to answer; None for no limit.
      thread: "main" for environments that need the main thread of their process; None for a thread
        of the server. Either way, an environment stays in one thread.

    Returns:
      The running server.

    Raises:
      LaunchError: the interpreter is too old, cannot be started, lacks NumPy or cannot import the
        module (the error includes the version of Python); or the server does not start, as in
        `from_process`.
      SpecError: the reference is not MODULE:NAME, or an argument is invalid, as in `from_process`.
    """
    timeout = arguments.seconds("timeout", timeout, none=arguments.NO_LIMIT)
    check_process(env, cwd)
    arguments.path("python", python, none="None for the interpreter of this process")
    arguments.instance(
        "reference", reference, str, "a string MODULE:NAME, such as 'my_envs:Walker'"
    )
    module, found, name = reference.partition(":")
    if not found or not module or not name or module == "__main__":
        raise SpecError(
            "an environment in a separate process must be given as MODULE:NAME, such as "
            f"my_envs:Walker (not in __main__, which the process cannot import), got {reference!r}"
        )
    if thread is not None:
        arguments.one_of("thread", thread, ("main",))
    own: dict[str, str] = {}
    if python is None:
        command = [*_package_server(sys.executable, thread), reference]
        own = _own_modules()
    else:
        deadline = Deadline.after(timeout)
        command = other_python(os.fspath(python), reference, env, cwd, timeout, thread)
        left = deadline.remaining
        timeout = None if left is None else max(left, _LEAST_SECONDS)
    return from_process(
        [*command, f"unix:{_SOCKET}"], env={**own, **(env or {})}, cwd=cwd, timeout=timeout
    )


def from_source(source: str, *, timeout: float | None = START_SECONDS) -> Launch:
    """Serve an environment from another package in a separate process, with `dm-env-rpc serve`.

    Args:
      source: a source that the command accepts, such as "gymnasium://CartPole-v1".
      timeout: time limit, in seconds, for the server to answer; None for no limit.

    Returns:
      The running server.

    Raises:
      LaunchError: the environment cannot be made, or the extra `cli` is not installed.
    """
    command = [sys.executable, "-m", "dm_env_rpc_client", "serve", source]
    return from_process(
        [*command, "--address", f"unix:{_SOCKET}"], env=_own_modules(), timeout=timeout
    )


def check_process(env: Mapping[str, str] | None, cwd: str | os.PathLike[str] | None = None) -> None:
    """Raise SpecError if the variables or the working directory have the wrong type."""
    expected = "a mapping of names to strings"
    arguments.mapping("env", env, expected=expected, none="None for those of this process")
    arguments.path("cwd", cwd, none="None for that of this process")


def _checked_argv(argv: Sequence[str]) -> Sequence[str]:
    """Return the command if it is a nonempty list of strings, or raise SpecError."""
    expected = "a list of the program and its arguments"
    if isinstance(argv, str):
        raise SpecError(
            f"argv must be {expected}, got the string {argv!r}; shlex.split turns it into a list"
        )
    arguments.instance("argv", argv, Sequence, expected)
    if not arguments.names("argv", argv, expected=expected):
        raise arguments.refused("argv", expected, argv)
    return argv


def _own_modules() -> dict[str, str]:
    """Return the variables that make a Python process use this process's module path."""
    paths = [os.path.abspath(path) for path in sys.path if isinstance(path, str)]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def server_variables(more: Mapping[str, str]) -> dict[str, str]:
    """Return a server's environment variables, made of `UNBUFFERED`, this process's and `more`.

    Args:
      more: variables that extend or override those of this process.
    """
    return {**UNBUFFERED, **children.variables(more)}


def other_python(
    python: str,
    reference: str,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float | None = START_SECONDS,
    thread: str | None = None,
) -> list[str]:
    """Return the command that starts a server in another interpreter, up to its address.

    Args:
      python: the interpreter.
      reference: MODULE:NAME of the environment's factory.
      env: environment variables added to those of this process.
      cwd: the working directory.
      timeout: time limit, in seconds, for the interpreter to report its version; None for no limit.
      thread: "main" to run the environments in the main thread of the server.

    Raises:
      LaunchError: the interpreter cannot be started, does not answer in time, or is older than
        Python 3.6.
      SpecError: a string cannot be passed to a program; see `from_process`.
    """
    check_startable([python, reference, cwd], env)
    named = shlex.join([python, reference])
    late = "say {} which Python it is"
    code, printed, errors = asked([python, "-c", _WHAT_IT_HAS], named, late, timeout, env, cwd)
    words = printed.split()
    if code or len(words) != 3 or not (words[0] + words[1]).isdecimal():
        raise LaunchError("is not a Python interpreter", named, code, printed + errors)
    if (int(words[0]), int(words[1])) < _OLDEST:
        found, needed = ".".join(words[:2]), ".".join(map(str, _OLDEST))
        raise LaunchError(f"is Python {found}; servers need {needed} or later", named, None, "")
    if words[2] == "True":
        return [*_package_server(python, thread), reference]
    chosen = [] if thread is None else ["--thread", thread]
    return [python, standalone.FILE, *chosen, reference, "--address"]


def _package_server(python: str, thread: str | None) -> list[str]:
    """Return the command that starts this package's server, without the source and address."""
    chosen = [] if thread is None else ["--thread", thread]
    return [python, "-m", "dm_env_rpc_client.server", *chosen]


def asked(
    command: Sequence[str],
    named: str,
    late: str,
    timeout: float | None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> tuple[int, str, str]:
    """Run a command that is expected to end on its own, and return its exit code and output.

    The command may be a wrapper for the interpreter, so a timeout kills its whole process group.

    Args:
      command: the program and its arguments.
      named: the name of the command in errors.
      late: the message for a timeout, with {} for the time.
      timeout: time limit, in seconds, for the command to end; None for no limit.
      env: environment variables added to those of this process.
      cwd: the working directory; None for that of this process.

    Returns:
      The exit code, standard output, and standard error.

    Raises:
      LaunchError: the command cannot be started, or does not end in time.
    """
    # Files, since a pipe would stay open as long as any process started by the wrapper runs.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:

        def printed() -> tuple[str, str]:
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
            return texts[0], texts[1]

        try:
            process = subprocess.Popen(
                command, cwd=cwd, env=children.variables(env or {}), stdin=subprocess.DEVNULL,
                stdout=output, stderr=errors, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise LaunchError(f"cannot be started: {error}", named, None, "") from error
        try:
            return process.wait(timeout), *printed()
        except subprocess.TimeoutExpired:
            reason = f"did not {late.format(f'within {timeout:g} s')}"
            raise LaunchError(reason, named, None, "".join(printed())) from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@dataclasses.dataclass(frozen=True)
class _Command:
    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    address: str

    def has(self, name: str) -> bool:
        return any(name in text for text in (*self.argv, *self.env.values(), self.address))

    def default_address(self) -> str:
        if self.has(_SOCKET):
            return f"unix:{_SOCKET}"
        if self.has(_PORT):
            return f"localhost:{_PORT}"
        raise SpecError(
            f"the command {shlex.join(self.argv)!r} does not specify where to listen: include "
            f"{_PORT} or {_SOCKET} in it, such as --port={_PORT}, or pass the server's address if "
            "it is always the same"
        )

    def filled(self, values: Mapping[str, str]) -> _Command:
        def fill(text: str) -> str:
            for name, value in values.items():
                text = text.replace(name, value)
            return text

        env = {name: fill(value) for name, value in self.env.items()}
        return _Command([fill(part) for part in self.argv], env, self.cwd, fill(self.address))


def _start(
    command: _Command,
    port: Port | None,
    deadline: Deadline,
    timeout: float | None,
    options: ConnectOptions,
) -> Launch:
    values = {} if port is None else {_PORT: str(port.number)}
    folder = ""
    if command.has(_SOCKET):
        folder = tempfile.mkdtemp(prefix="dm-env-rpc-")
        values[_SOCKET] = os.path.join(folder, "socket")
    filled = command.filled(values)

    def start(output: IO[bytes]) -> subprocess.Popen[bytes]:
        return children.start_supervised(
            filled.argv,
            folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=server_variables(filled.env),
            cwd=filled.cwd,
        )

    try:
        launch = Launch(start, shlex.join(filled.argv), filled.address, options)
        try:
            launch.wait_until_ready(deadline.remaining, timeout)
            if port is not None and port.is_foreign(launch.pid):
                port.is_lost = True
                reason = f"does not listen at {launch.address}, where another program answers"
                raise launch.error(reason)
        except BaseException:
            launch.close()
            raise
    except BaseException:
        # Usually already removed by the supervisor, unless that was killed before it had a guard.
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return launch
