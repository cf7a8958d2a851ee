"""Takes the connections of servers that dial in, and keeps them until they are needed.

One thread accepts them, and reads what they say first. The connections that wait are a queue: the
one that came first is taken first.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DeadlineExceededError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.system.locks import make_rlock
from dm_env_rpc_client.system.polling import why_no_epoll
from dm_env_rpc_client.system.waiting import InterruptibleCondition
from dm_env_rpc_client.transports.credentials import ServerCredentials, Tls
from dm_env_rpc_client.transports.http2.dial_in import greeting as dialing
from dm_env_rpc_client.transports.http2.server.accepting import AcceptingThread
from dm_env_rpc_client.transports.http2.server.clients import peer_address
from dm_env_rpc_client.transports.http2.sockets import (
    WOULD_BLOCK,
    accepted_socket,
    server_tls_context,
)
from dm_env_rpc_client.transports.metadata import Token
from dm_env_rpc_client.transports.server_streams import check_may_listen

_log = logging.getLogger("dm_env_rpc_client.incoming")

_GREET_SECONDS = 10.0
"""How long a server may take to say whom it is."""

_LOOK_SECONDS = 1.0

_WARN_SECONDS = 1.0
"""The shortest time between two warnings of refused servers."""

_MAX_GREETING = 256
"""Connections that have not said what they offer. Beyond that the oldest is closed."""

_READ = select.EPOLLIN | select.EPOLLRDHUP


class DialedIn(NamedTuple):
    """A connection that was taken."""

    socket: Any
    """Not blocking; the server expects an HTTP/2 client from here on."""

    address: str
    """Of the server, in the syntax of gRPC."""

    environments: int
    """How many streams may be open on it."""


class _GoneError(Exception):
    """A server has closed its connection."""


class _Dialing:
    """A connection of a server that has not been taken."""

    def __init__(self, accepted: Any, address: str):
        self.socket = accepted
        self.address = address
        self.accepted_at = time.monotonic()
        self.is_encrypting = isinstance(accepted, ssl.SSLSocket)
        self.line = dialing.Line()
        self.environments = 0


class IncomingSockets(AcceptingThread):
    """Listens for servers that dial in.

    Args:
      address: `host:port` or `unix:path`; port 0 takes a free one.
      credentials: a Tls with a certificate, or an ssl.SSLContext of a server; None for plaintext.
      token: what the servers have to send; None lets everybody in.
      insecure: allow plaintext on an address that other machines can reach.

    Attributes:
      address: the address, with the port that it got.
      refused: how many servers were turned away.

    Raises:
      SpecError: plaintext on an address that other machines can reach, without `insecure`; wrong
        credentials or a wrong token; or the system is not Linux.
      OSError: the address is taken, or does not belong to this machine.
    """

    def __init__(
        self,
        address: str,
        credentials: ServerCredentials | None = None,
        token: str | None = None,
        insecure: bool = False,
    ):
        check_may_listen(address, credentials, insecure)
        if not hasattr(select, "epoll"):
            raise SpecError(f"listening for servers that dial in takes {why_no_epoll()}")
        if not (credentials is None or isinstance(credentials, ssl.SSLContext | Tls)):
            raise SpecError(
                "listen takes a Tls or an ssl.SSLContext as credentials, got "
                f"{type(credentials).__name__}"
            )
        self._tls = server_tls_context(credentials, address, dialing.ALPN)
        self._token = None if token is None else Token(token)
        self.refused = 0
        self._last_refusal = ""
        self._warned_at = -math.inf
        # Protects what follows. One thread may come twice: a signal's handler that closes this.
        self._lock = make_rlock()
        self._changed = InterruptibleCondition()
        # By descriptor, in the order in which they came; those that wait have been welcomed.
        self._greeting: dict[int, _Dialing] = {}
        self._waiting: dict[int, _Dialing] = {}
        super().__init__(address, "is dialed")

    @property
    def waiting(self) -> int:
        """How many environments the servers offer that wait."""
        # A copy, which another thread does not change.
        return sum(each.environments for each in list(self._waiting.values()))

    def wait_for(self, environments: int, timeout: float | None) -> bool:
        """Waits until so many environments wait.

        Args:
          environments: how many.
          timeout: seconds; 0 looks once, None sets no limit.

        Returns:
          Whether they wait.

        Raises:
          SpecError: an argument is of another type or out of range.
        """
        timeout = arguments.seconds("timeout", timeout, least=0.0, none=arguments.NO_LIMIT)
        environments = arguments.count("environments", environments, least=0)
        return self._changed.wait_for(
            lambda: self._is_closed or self.waiting >= environments, timeout
        )

    def take(self, wanted: Callable[[int], int], deadline: float | None) -> DialedIn:
        """Takes the connection that has waited longest; waits for one if there is none.

        Args:
          wanted: returns how many environments are wanted of it at most, from the number of
            connections that wait.
          deadline: on the monotonic clock; None for no limit.

        Raises:
          DeadlineExceededError: no server dialed in.
          ConnectionClosedError: this was closed.
        """
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            is_over = self._changed.wait_for(lambda: self._is_closed or bool(self._waiting), left)
            with self._lock:
                self._check_open()
                if not is_over:
                    raise DeadlineExceededError(self._nobody())
                if not self._waiting:
                    continue  # Another thread took it.
                most = wanted(len(self._waiting))
                descriptor, taken = next(iter(self._waiting.items()))
                del self._waiting[descriptor]
                self._poll.unregister(descriptor)
            number = min(most, taken.environments)
            try:
                taken.socket.sendall(dialing.line_of(environments=number))
            except OSError as error:
                _log.info("%s was gone when it was needed: %s", taken.address, error)
                taken.socket.close()
                continue
            except BaseException:
                taken.socket.close()
                raise
            return DialedIn(taken.socket, taken.address, number)

    def close(self) -> None:
        """Closes the connections that wait, and takes no more; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
        self._bell.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def after_fork_in_child(self) -> None:
        """Gives up what belongs to the parent; called in the only thread of a forked child."""
        self._lock = make_rlock()
        self._changed = InterruptibleCondition()
        self._is_closed = True
        super().after_fork_in_child()
        for each in (*self._greeting.values(), *self._waiting.values()):
            each.socket.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError(f"{self.address} was closed: no environment can dial in")

    def _nobody(self) -> str:
        text = f"no environment dialed in to {self.address} in time"
        if self.refused:
            return f"{text}; {self.refused} were refused, the last because {self._last_refusal}"
        return f"{text}; start servers with `dm-env-rpc serve ... --dial ADDRESS`"

    # The thread that listens.

    def _run(self) -> None:
        try:
            while True:
                if self._is_closed:
                    break
                self._turn(_LOOK_SECONDS if self._greeting else -1)
                self._drop_late()
        except BaseException:
            if not self._is_closed:
                _log.exception("servers can dial in to %s no more", self.address)
        finally:
            with self._lock:
                self._is_closed = True
                self._changed.notify_all()
                self._release()

    def _accepted(self, accepted: Any, where: Any) -> None:
        try:
            accepted = accepted_socket(accepted, self._tls)
            self._poll.register(accepted, _READ)
        except (OSError, ValueError):
            accepted.close()
            return
        address = peer_address(accepted.family, where)
        self._greeting[accepted.fileno()] = _Dialing(accepted, address)
        if len(self._greeting) > _MAX_GREETING:
            self._drop(next(iter(self._greeting)), "too many servers dial in at the same time")

    def _advance(self, descriptor: int) -> None:
        """Takes what a server says; one that waits has nothing to say, so that it has gone."""
        with self._lock:
            if descriptor in self._waiting:
                gone = self._waiting.pop(descriptor)
                self._poll.unregister(descriptor)
                gone.socket.close()
                _log.info("%s is gone, and was not needed", gone.address)
                return
        dialing_in = self._greeting.get(descriptor)
        if dialing_in is None:
            return  # It was taken.
        try:
            said = self._hear(dialing_in)
            if said is not None:
                self._welcome(descriptor, dialing_in, said)
        except WOULD_BLOCK:
            pass
        except _GoneError:
            self._forget(descriptor)
            _log.info("%s was gone before it said what it offers", dialing_in.address)
        except ProtocolError as error:
            self._refuse(descriptor, dialing_in, "INVALID_ARGUMENT", str(error))
        except (OSError, ValueError) as error:
            self._drop(descriptor, getattr(error, "strerror", None) or str(error))

    def _hear(self, dialing_in: _Dialing) -> dict[str, Any] | None:
        connected = dialing_in.socket
        if dialing_in.is_encrypting:
            try:
                connected.do_handshake()
            except ssl.SSLWantWriteError:
                self._poll.modify(connected, select.EPOLLOUT)
                raise
            except ssl.SSLWantReadError:
                self._poll.modify(connected, _READ)
                raise
            if connected.selected_alpn_protocol() != dialing.ALPN:
                raise OSError(f"it does not offer {dialing.ALPN} in TLS")
            dialing_in.is_encrypting = False
            self._poll.modify(connected, _READ)
        while True:
            received = connected.recv(dialing_in.line.room)
            if not received:
                raise _GoneError
            said = dialing_in.line.add(received)
            if said is not None:
                return said

    def _welcome(self, descriptor: int, dialing_in: _Dialing, said: dict[str, Any]) -> None:
        environments = dialing.offered(said)
        if self._token is not None:
            sent = said.get("token")
            text = ""
            if not isinstance(sent, str):
                text = "a token is required, and the server sent none"
            elif not self._token.is_equal(sent):
                text = "the token of the server is not valid here"
            if text:
                self._refuse(descriptor, dialing_in, "UNAUTHENTICATED", text)
                return
        dialing_in.socket.sendall(dialing.line_of(code="OK"))
        dialing_in.environments = environments
        del self._greeting[descriptor]
        with self._lock:
            self._waiting[descriptor] = dialing_in
            self._changed.notify_all()
        _log.info("%s dialed in and offers %d environments", dialing_in.address, environments)

    def _refuse(self, descriptor: int, dialing_in: _Dialing, code: str, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            dialing_in.socket.sendall(dialing.line_of(code=code, text=text))
        self._drop(descriptor, text)

    def _forget(self, descriptor: int) -> _Dialing:
        forgotten = self._greeting.pop(descriptor)
        self._poll.unregister(descriptor)
        forgotten.socket.close()
        return forgotten

    def _drop(self, descriptor: int, reason: str) -> None:
        # Counted before the server can notice.
        self._last_refusal = reason
        self.refused += 1
        dropped = self._forget(descriptor)
        now = time.monotonic()
        # Whoever can connect can be refused as often as it likes.
        if now - self._warned_at > _WARN_SECONDS:
            self._warned_at = now
            _log.warning("%s was refused: %s", dropped.address, reason)

    def _drop_late(self) -> None:
        late = time.monotonic() - _GREET_SECONDS
        for descriptor, each in list(self._greeting.items()):
            if each.accepted_at > late:
                break  # Those after it came later.
            self._drop(descriptor, f"it did not say what it offers within {_GREET_SECONDS:g} s")

    def _release(self) -> None:
        for each in (*self._greeting.values(), *self._waiting.values()):
            each.socket.close()
        self._greeting.clear()
        self._waiting.clear()
        super()._release()
