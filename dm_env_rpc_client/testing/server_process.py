"""An environment author's own server, started for tests and always stopped."""

from __future__ import annotations

import shlex
import socket
import subprocess
import tempfile
import time

from dm_env_rpc_client.client.connection import connect
from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.runtime import children
from dm_env_rpc_client.runtime.deadline import Deadline

__all__ = ["ServerProcess", "ServerProcessError"]

_ATTEMPT_SECONDS = 0.5
_PAUSE_SECONDS = 0.05
_STOP_SECONDS = 10.0
_SHOWN_BYTES = 4000


class ServerProcessError(DmEnvRpcClientError):
    """A server did not start; the text includes what it printed."""


class ServerProcess:
    """A server in a process group of its own, under a supervisor.

    The supervisor ends the whole group when `stop` is called, and also when the process
    that made this object ends, even by SIGKILL.

    Args:
      command: the command line; `{port}` in it is replaced by a free port.
      timeout: seconds until the server must accept connections.

    Attributes:
      address: the address at which it listens.

    Raises:
      ServerProcessError: it ended, or did not listen within `timeout`.
    """

    def __init__(self, command: str, timeout: float = 30.0):
        port = _free_port()
        self.address = f"localhost:{port}"
        self._command = command.replace("{port}", str(port))
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `stop`
        try:
            self._process = children.start_supervised(
                shlex.split(self._command), stdout=self._output, stderr=subprocess.STDOUT
            )
        except BaseException:
            self._output.close()
            raise
        try:
            self._wait_until_it_listens(timeout)
        except BaseException:
            self.stop()
            raise

    @property
    def output(self) -> str:
        """The end of what the server has printed."""
        self._output.seek(0)
        return self._output.read()[-_SHOWN_BYTES:].decode(errors="replace")

    def stop(self) -> None:
        """Ends the server and everything in its process group; a second time does nothing."""
        children.end(self._process, _STOP_SECONDS)
        self._output.close()

    def _wait_until_it_listens(self, timeout: float) -> None:
        deadline = Deadline.after(timeout)
        while True:
            try:
                connect(self.address, timeout=_ATTEMPT_SECONDS).close()
                return
            except DmEnvRpcClientError as error:
                self._check_is_alive(error, deadline.has_passed, timeout)
            time.sleep(_PAUSE_SECONDS)

    def _check_is_alive(self, error: DmEnvRpcClientError, is_late: bool, timeout: float) -> None:
        code = self._process.poll()
        if code is not None:
            raise ServerProcessError(
                f"the server ended with exit code {code}: {self._command}\n{self.output}"
            ) from error
        if is_late:
            raise ServerProcessError(
                f"the server did not listen on {self.address} within {timeout} s: "
                f"{self._command}\n{self.output}"
            ) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
