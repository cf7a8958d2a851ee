"""A launched server, as returned by `from_process` and `from_docker`."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from dm_env_rpc_client import arguments
from dm_env_rpc_client.client import server_ends
from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.readiness import check_answers
from dm_env_rpc_client.errors import DmEnvRpcClientError, LaunchError, SpecError
from dm_env_rpc_client.launch.ports import doing
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.waiting import Deadline

LOG_BYTES = 64 << 10
"""The maximum size, in bytes, of the output returned by `logs`."""

STOP_SECONDS = 15.0
"""The time limit, in seconds, for the supervising process to stop its server, including
the server's own shutdown."""

_EXIT_SECONDS = 2.0
_END_SECONDS = 2.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
_ATTEMPT_SECONDS = 2.0


class Launch:
    """A launched server, which is stopped when this object is closed or deleted.

    The server ends when `close` is called, when the object is garbage-collected (with a
    ResourceWarning), when the interpreter exits, or when this process is killed.

    Args:
      start: a function that receives a file for the server's output and starts the supervisor or
        keeper, a process that stops the server when its lifeline is closed (see `system.children`)
        and ends when the server ends.
      command: the name of the server in errors.
      address: the server's address.
      options: the options of the connection that waits for the first answer.
      stop_seconds: time limit, in seconds, for the supervisor or keeper to end the server.

    Attributes:
      address: the server's address, such as "localhost:40123".
      command: the name of the server in errors.
    """

    def __init__(
        self,
        start: Callable[[IO[bytes]], subprocess.Popen[bytes]],
        command: str,
        address: str,
        options: ConnectOptions,
        stop_seconds: float = STOP_SECONDS,
    ):
        self.address = address
        self._stop_seconds = stop_seconds
        self.command = command
        self._options = options
        self._output = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # see `close`
        self._last = ""
        try:
            self._process = start(self._output)
        except BaseException:
            self._output.close()
            raise
        self._owner = os.getpid()
        self._finalizer = self._finalize(f"a launched server was not closed: {command}")

    @property
    def pid(self) -> int:
        """The id of the process that supervises the server; it does not forward signals.

        If that process is killed, its guard ends the server.
        """
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server is still running."""
        return self._process.poll() is None

    def logs(self) -> str:
        """Return the end of the server's output, at most `LOG_BYTES` (64 KiB)."""
        if self._output.closed:
            return self._last
        # `seek` would move the server's write position, which this file shares.
        number = self._output.fileno()
        size = os.fstat(number).st_size
        return os.pread(number, LOG_BYTES, max(0, size - LOG_BYTES)).decode(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """The server's exit code (negative if a signal ended it), or None if it is running."""
        return self._process.poll()

    def wait_until_ready(
        self, timeout: float | None, reported_timeout: float | None = None
    ) -> None:
        """Wait until the server answers a request, not just until it accepts a connection.

        Args:
          timeout: time limit in seconds; 0 for one attempt, None for no limit.
          reported_timeout: the time limit of the whole launch, in seconds; `timeout` is the rest
            of it.

        Raises:
          LaunchError: the server ended, or did not answer in time.
        """
        timeout = arguments.seconds("timeout", timeout, least=0.0, none=arguments.NO_LIMIT)
        deadline = Deadline.after(timeout)
        pause = _SHORTEST_PAUSE
        while True:
            left = deadline.remaining
            seconds = _ATTEMPT_SECONDS if left is None else max(0.05, min(left, _ATTEMPT_SECONDS))
            try:
                self.check_running()
                check_answers(self.address, min(seconds, 20 * pause), self._options)
                self.check_running()
                # Only now: earlier, an attempt that loses its connection would wait for the end.
                server_ends.watch(self.address, self)
                return
            except (LaunchError, SpecError):
                raise
            except DmEnvRpcClientError as error:
                self.check_running(error)
                if deadline.has_passed:
                    waited = f"within {reported_timeout or timeout:g} s"
                    reason = f"did not answer at {self.address} {waited} ({error}{self._doing()})"
                    raise self.error(reason) from error
                # The frames refer to this object, and would keep it alive as long as the error.
                error.__traceback__ = None
            time.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _doing(self) -> str:
        shown = doing(self.pid)
        return shown and f"; its processes: {shown}"

    def suppress_resource_warning(self) -> None:
        """Suppress the warning for an object that is garbage-collected without `close`."""
        self._finalizer.detach()
        self._finalizer = self._finalize(None)

    def check_running(self, cause: Exception | None = None) -> None:
        """Raise LaunchError if the server has ended."""
        code = self._process.poll()
        if code is not None:
            raise self.error(_how_ended(code)) from cause

    def end(self) -> LaunchError | None:
        """Wait up to 2 s for the server to end on its own.

        Returns:
          The reason why the server ended; None if it is still running, or was launched by another
          process.
        """
        if os.getpid() != self._owner:
            return None
        try:
            return self.error(_how_ended(self._process.wait(_END_SECONDS)))
        except subprocess.TimeoutExpired:
            return None

    def error(self, reason: str) -> LaunchError:
        """Return a LaunchError for `reason`, with the exit code and output of the server."""
        return LaunchError(reason, self.command, self._process.poll(), self.logs())

    def close(self) -> None:
        """Stop the server and all processes in its group; repeated calls have no effect."""
        if self._finalizer.detach() is None:
            return
        server_ends.unwatch(self.address, self)
        try:
            children.end(self._process, self._stop_seconds)
        finally:
            self._last = self.logs()
            self._output.close()

    def _finalize(self, warning: str | None) -> Any:
        return weakref.finalize(
            self, _end_forgotten, self._process, self._output, self._owner, warning
        )

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "ended"
        return f"<Launch at {self.address}, {state}: {self.command}>"


def check_startable(texts: Iterable[object], env: Mapping[str, str] | None) -> None:
    """Validate the arguments of a program before anything is started.

    Args:
      texts: parts of the command line, paths and addresses; None for omitted ones.
      env: environment variables; their values can be secret and never appear in errors.

    Raises:
      SpecError: the operating system cannot pass an argument to a program.
    """
    named = [(repr(text), text) for text in texts if text is not None]
    for name, value in (env or {}).items():
        if name == "" or (isinstance(name, str) and "=" in name):
            raise SpecError(
                f"the name of a variable in env must not be empty or contain '=': {name!r}"
            )
        named += [(f"the name of a variable {name!r}", name), (f"the value of {name!r}", value)]
    for what, given in named:
        try:
            has_nul = b"\0" in os.fsencode(given)  # type: ignore[arg-type]  # TypeError is caught
            reason = "it contains a NUL byte" if has_nul else ""
        except (TypeError, UnicodeEncodeError) as error:
            reason = f"it must be text in the encoding of files ({type(error).__name__})"
        if reason:  # Raised outside `except`: a chained encoding error would contain the text.
            raise SpecError(f"{what} cannot be passed to a program: {reason}")


def _how_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    # Real-time signals have no names.
    name = next((f" ({each.name})" for each in signal.Signals if each == -code), "")
    return f"was ended by signal {-code}{name}"


def _end_forgotten(
    process: subprocess.Popen[bytes], output: IO[bytes], owner: int, warning: str | None
) -> None:
    """Stop an unclosed server; called by the garbage collector and at interpreter exit."""
    output.close()
    if os.getpid() != owner:
        return  # A forked child: the server is its parent's.
    children.let_go(process)
    if threading.main_thread().is_alive():
        if warning is not None:
            warnings.warn(warning, ResourceWarning, stacklevel=1)
        # The garbage collector may run in the middle of any code, which must not have to wait.
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(process.wait, ())
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_SECONDS)
