"""Dials a program again and again, and has each connection that it takes served."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import socket
import ssl
import threading
import time
from typing import Any

from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.system import forking
from dm_env_rpc_client.transports.addresses import Target
from dm_env_rpc_client.transports.http2.client.attempts import HandshakeError
from dm_env_rpc_client.transports.http2.dial_in import greeting as dialing
from dm_env_rpc_client.transports.http2.dial_in.greeting import Dial
from dm_env_rpc_client.transports.http2.server.listener import Http2Listener
from dm_env_rpc_client.transports.http2.sockets import connect_socket, tls_context
from dm_env_rpc_client.transports.server_streams import Listener, ListenerOptions
from dm_env_rpc_client.transports.status import stream_error

_log = logging.getLogger("dm_env_rpc_client.server")

_GREET_SECONDS = 10.0
"""How long connecting and being welcomed may take."""

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class DialingListener(Listener):
    """A `Listener` that opens its connections itself, to the program that uses the environments.

    A thread dials for as long as there are environments that it has not offered. Each connection
    that waits until it is needed has a thread, too.

    Args:
      options: what is served.
      dial: where the program is, and what it is offered.

    Raises:
      SpecError: a file of the credentials cannot be read.
    """

    def __init__(self, options: ListenerOptions, dial: Dial):
        self.address = dial.address
        self._dial = dial
        self._target = Target.parse(dial.address)
        self._read_tls()  # An error shows at once.
        self._listener = Http2Listener(options, None, None)
        # Protects what follows.
        self._changed = threading.Condition()
        self._free = dial.environments
        self._is_closed = False
        self._open: set[Any] = set()
        self._pause = 0.0
        self._last_failure = ""
        threading.Thread(
            target=self._run, name=f"dm_env_rpc dials {dial.address}", daemon=True
        ).start()
        forking.register(self)

    def wait(self, timeout: float | None = None) -> bool:
        return self._listener.wait(timeout)

    def stop(self, grace: float) -> None:
        self._dial_no_more()
        self._listener.stop(grace)

    def abort(self) -> None:
        self._dial_no_more()
        self._listener.abort()

    def _dial_no_more(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for connected in self._open:
                with contextlib.suppress(OSError):
                    # Wakes the thread that reads, which closing it would not.
                    socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def after_fork_in_child(self) -> None:
        """Gives up what belongs to the parent; called in the only thread of a forked child."""
        self._changed = threading.Condition()
        self._is_closed = True
        for connected in self._open:
            connected.close()
        self._open.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, self._pause)
                self._changed.wait_for(lambda: self._is_closed or self._free > 0)
                if self._is_closed:
                    return
                offered, self._free = self._free, 0
            connected = None
            try:
                connected = self._connect()
                self._greet(connected, offered)
                threading.Thread(
                    target=self._wait_until_needed,
                    args=(connected, offered),
                    name=f"dm_env_rpc waits for {self._dial.address}",
                    daemon=True,
                ).start()
            except Exception as error:
                self._failed(connected, offered, error)

    def _connect(self) -> Any:
        deadline = time.monotonic() + _GREET_SECONDS
        connected = connect_socket(
            self._target, self._read_tls(), deadline, self._dial.stays_on_loopback, dialing.ALPN
        )
        with self._changed:
            if not self._is_closed:
                self._open.add(connected)
                return connected
        connected.close()
        raise ConnectionAbortedError("the server was stopped")

    def _greet(self, connected: Any, offered: int) -> None:
        connected.settimeout(_GREET_SECONDS)
        connected.sendall(self._dial.hello(offered))
        said = _read_line(connected)
        code = said.get("code")
        if code != "OK":
            raise _RefusedError(str(stream_error(self._dial.address, str(code), said.get("text"))))
        connected.settimeout(None)
        _log.info("%s welcomed this server, which waits until it is needed", self._dial.address)

    def _wait_until_needed(self, connected: Any, offered: int) -> None:
        try:
            needed = dialing.number_of_environments(_read_line(connected), offered)
            connected.setblocking(False)
        except Exception as error:
            self._failed(connected, offered, error)
            return
        with self._changed:
            self._open.discard(connected)
            self._pause = 0.0
            self._last_failure = ""
        self._give_back(offered - needed)
        self._listener.serve_opened(
            connected, self._dial.address, functools.partial(self._give_back, needed)
        )

    def _give_back(self, number: int) -> None:
        with self._changed:
            self._free += number
            self._changed.notify_all()

    def _failed(self, connected: Any, offered: int, error: Exception) -> None:
        with self._changed:
            self._open.discard(connected)
            if self._pause < _FIRST_PAUSE_SECONDS:
                self._pause = _FIRST_PAUSE_SECONDS
            else:
                longest = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
                self._pause = longest * random.uniform(0.75, 1.0)
        if connected is not None:
            connected.close()
        reason = str(error)
        if isinstance(error, OSError) and not isinstance(error, DmEnvRpcClientError):
            reason = error.strerror or reason or type(error).__name__
        if reason != self._last_failure and not self._is_closed:
            self._last_failure = reason
            _log.warning(
                "could not dial in to %s: %s; it is tried again", self._dial.address, reason
            )
        self._give_back(offered)

    def _read_tls(self) -> Any:
        # Again for each connection: the files may have been replaced.
        return tls_context(self._dial.client_credentials, self._dial.address, dialing.ALPN)


class _RefusedError(ConnectionRefusedError):
    """The program does not take this server."""


def _read_line(connected: Any) -> dict[str, Any]:
    """Returns what the next line says; reads nothing behind it, since that is HTTP/2."""
    line = dialing.Line()
    while True:
        try:
            received = connected.recv(1)
        except ssl.SSLError as error:
            # With TLS 1.3 this is where a program refuses a certificate.
            raise HandshakeError(error) from error
        if not received:
            raise ConnectionResetError("the connection was closed at the other end")
        said = line.add(received)
        if said is not None:
            return said
