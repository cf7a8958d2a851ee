"""The location of a server: an address, or a launcher that is called again if the server ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dm_env_rpc_client.client.connect_options import (
    CONNECT_SECONDS,
    ConnectOptions,
    LaunchedKeywords,
)
from dm_env_rpc_client.errors import ConnectionClosedError, LaunchError, SpecError
from dm_env_rpc_client.launch.containers import Progress
from dm_env_rpc_client.launch.launched import Launch
from dm_env_rpc_client.launch.processes import START_SECONDS
from dm_env_rpc_client.launch.specs import Address, Launcher, is_address, launcher_of
from dm_env_rpc_client.system.locks import make_lock

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Address", "Site", "is_address", "launched"]

Target = TypeVar("Target")


class Site(Generic[Target]):
    """A server at an address, or a server launched by this process.

    A launched server ends with `close`, or when all environments that use it have been forgotten.

    Args:
      given: the address of a server, or a string or function that launches one.
      target: a function that makes the target of connections from the address of the server.
      options: how to connect, also to check whether a launched server answers.
      progress: called while an image is pulled.
      python: the interpreter for `python:`; None for the interpreter of this process.

    Attributes:
      name: the name of the server in errors.
      target: the present target of connections.

    Raises:
      LaunchError: the server was not started.
      SpecError: the string is in no known form. Otherwise as `target`.
    """

    def __init__(
        self,
        given: Address,
        target: Callable[[Any], Target],
        options: ConnectOptions,
        progress: Progress | None = None,
        python: str | os.PathLike[str] | None = None,
    ):
        # The function alone, as the arguments of a `functools.partial` may be secret.
        self.name = given if isinstance(given, str) else repr(getattr(given, "func", given))
        self._make_target = target
        self._timeout = options.timeout
        self._lock = make_lock()
        self._is_closed = False
        self._users = 0
        self._launch: Launch | None = None
        self._launcher: Launcher | None = None
        if python is None and is_address(given):
            self.target = target(given)
        else:
            self._launcher = launcher_of(given, options, progress, python)
            self._start(self._launcher)

    @property
    def launch(self) -> Launch | None:
        """The launched server, or None for a server at an address."""
        return self._launch

    def renew(self, is_shared: bool) -> None:
        """Make sure that a launched server answers again after a connection to it was lost.

        Args:
          is_shared: whether other environments use the server, which is then kept if it still
            answers.

        Raises:
          LaunchError: the server was not started.
          ConnectionClosedError: `close` was called.
        """
        with self._lock:
            if self._is_closed:
                raise ConnectionClosedError("the environment is closed")
            if self._launcher is None or self._launch is None:
                return
            if is_shared and self._launch.is_running:
                with contextlib.suppress(LaunchError):
                    # With a limit, since a frozen server would never answer.
                    self._launch.wait_until_ready(self._timeout or START_SECONDS)
                    return
            # A frozen server does not end on request; this kills it.
            self._launch.close()
            self._start(self._launcher)

    def use(self) -> None:
        """Register an environment as a user of the server."""
        with self._lock:
            self._users += 1

    def forget(self) -> None:
        """Unregister an environment that ended unclosed; if it was the last, close the server."""
        with self._lock:
            self._users -= 1
            is_used = self._users > 0
        # Without the lock: ending a server waits for its process.
        if not is_used:
            self.close()

    def close(self) -> None:
        """Stop the server if it was launched. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            if self._launch is not None:
                self._launch.close()

    def _start(self, launcher: Launcher) -> None:
        launch = launcher()
        if not isinstance(launch, Launch):
            raise SpecError(
                f"a function that launches a server must return a launch.Launch; {self.name} "
                f"returned {type(launch).__name__}"
            )
        # No warning is due: the site closes it, even without the environment's `close`.
        launch.suppress_resource_warning()
        try:
            self.target = self._make_target(launch.address)
        except BaseException:
            launch.close()
            raise
        self._launch = launch


@contextlib.contextmanager
def launched(
    given: Address,
    timeout: float | None = CONNECT_SECONDS,
    progress: Progress | None = None,
    **connecting: Unpack[LaunchedKeywords],
) -> Iterator[str]:
    """Return a context manager that launches a server if necessary and yields its address.

    Args:
      given: as for `Site`.
      timeout: as for `launcher_of`.
      progress: called while an image is pulled.
      **connecting: for `connect`.

    Yields:
      The address.

    Raises:
      As `Site`.
    """
    site = Site(given, str, ConnectOptions(timeout=timeout, **connecting), progress)
    try:
        yield site.target
    finally:
        site.close()
