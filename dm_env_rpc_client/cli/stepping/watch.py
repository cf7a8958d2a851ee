"""Shows which other players a pending step is waiting for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dm_env_rpc_client.cli.consoles import console
from dm_env_rpc_client.plain_text import one_line

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor

CUT_OFF = "cut off"
"""The "ended" value of an episode that was stopped at the step limit."""

_PATIENCE_SECONDS = 1.0
"""The seconds that a step must be pending before the client asks the server about it."""

_BETWEEN_SECONDS = 0.3
_CONNECT_SECONDS = 2.0


class Watch:
    """A thread that asks the server, over a separate connection, which players a step waits for.

    Only servers built with this package have this information; for other servers, the thread shows
    nothing.

    Args:
      env: the stepped environment.
      tell: called in the thread after each change, with `env` and what a step waits for.

    Attributes:
      waiting_for: what the step waits for; "" if unknown.
    """

    def __init__(self, env: DmEnvAdaptor, tell: Callable[[DmEnvAdaptor, str], None] | None = None):
        self.waiting_for = ""
        self._env = env
        self._tell = tell
        self._since: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join(_CONNECT_SECONDS)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Watch the step or reset that runs within the context."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None
            self.waiting_for = ""

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            opened: list[Connection] = []
            while True:
                if self._ended.wait(_BETWEEN_SECONDS):
                    break
                self._look(opened, stack)

    def _look(self, opened: list[Connection], stack: contextlib.ExitStack) -> None:
        since = self._since
        if since is None or time.monotonic() - since <= _PATIENCE_SECONDS:
            return
        try:
            if not opened:
                reopen = self._env.connection.reopen
                opened.append(stack.enter_context(reopen(_CONNECT_SECONDS)))
            text = self._ask(opened[0])
        except Exception:
            self._ended.set()  # The server lacks the information, or accepts no more connections.
            return
        if self._since is since and text != self.waiting_for:
            self.waiting_for = text
            if text and self._tell is not None:
                self._tell(self._env, text)

    def _ask(self, connection: Connection) -> str:
        from dm_env_rpc_client.extensions.properties import PropertiesExtension
        from dm_env_rpc_client.server.host import WAITING_FOR

        key = f"{WAITING_FOR}{self._env.world_name}"
        return str(PropertiesExtension(connection).read(key))


def on_stderr(env: DmEnvAdaptor, text: str) -> None:
    """Print which players a step is waiting for and how they can join.

    Args:
      env: the stepped environment.
      text: what the step waits for.
    """
    command = f"dm-env-rpc run {env.connection.address} --world {env.world_name!r}"
    console.print(one_line(f"waiting: {text}; others join with: {command}"), markup=False)
