"""Addresses that the direct HTTP/2 transport reaches, and the sockets that lead there."""

from __future__ import annotations

import base64
import importlib.metadata
import ipaddress
import os
import socket
import ssl
import threading
import time
import urllib.request
from typing import Any, NamedTuple, TypeAlias

from dm_env_rpc_client.errors import DmEnvRpcClientError, SpecError
from dm_env_rpc_client.transports.addresses import is_loopback, parse_host_port
from dm_env_rpc_client.transports.credentials import Credentials, is_local_credentials
from dm_env_rpc_client.transports.endpoint import RETRY_SECONDS
from dm_env_rpc_client.transports.metadata import Metadata, check_metadata
from dm_env_rpc_client.transports.status import PROCESS, not_connected

__all__ = [
    "Attempts",
    "Header",
    "Target",
    "can_reach",
    "connect_socket",
    "request_headers",
    "seconds_to_accept",
    "set_options",
    "tls_context",
]

Header: TypeAlias = tuple[str, str | bytes]

_IS_POSSIBLE = hasattr(socket, "AF_UNIX") and hasattr(socket.socket, "recvmsg_into")
"""Whether the machine has the sockets that this takes; Windows does not."""

_ACCEPT_SECONDS = 3.0
"""The longest that an address may take to accept a connection if the name has further ones."""

_TCP_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}
"""A machine that has vanished is noticed by the kernel, whatever servers think of PINGs."""


class Target(NamedTuple):
    """Where a server is."""

    path: str
    """Of a unix socket; empty for TCP."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """What the server is called in the request."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, address: str) -> Target:
        """Reads `host:port`, `unix:path` or `unix-abstract:name`; SpecError for others."""
        scheme, _, rest = address.partition(":")
        if scheme == "unix" and rest:
            return cls(rest.removeprefix("//"), "", 0)
        if scheme == "unix-abstract" and rest:
            return cls("\0" + rest, "", 0)
        return cls("", *parse_host_port(address))


def can_reach(address: str, credentials: Credentials | None) -> bool:
    """Whether this transport is the right one for an address where nobody says which.

    Other kinds of gRPC targets, credentials that only grpcio can read, and proxies are for
    grpcio.
    """
    is_plain = credentials is None or is_local_credentials(credentials)
    if not _IS_POSSIBLE or not (is_plain or isinstance(credentials, ssl.SSLContext)):
        return False
    try:
        target = Target.parse(address)
    except SpecError:
        return False
    return bool(target.path) or is_loopback(address) or not _needs_proxy(target.host)


def tls_context(credentials: Credentials | None, address: str) -> ssl.SSLContext | None:
    """Returns the context for TLS; None for plaintext.

    Raises:
      SpecError: these credentials are for grpcio only, or the machine cannot.
    """
    if not _IS_POSSIBLE:
        raise SpecError("transport 'http2' takes a POSIX system; use transport='grpc' here")
    if credentials is None or is_local_credentials(credentials):
        return None
    if not isinstance(credentials, ssl.SSLContext):
        raise SpecError(
            f"credentials for {address}: transport 'http2' takes an ssl.SSLContext, such as "
            f"ssl.create_default_context(), got {type(credentials).__name__}; or use "
            "transport='grpc'"
        )
    # gRPC servers speak HTTP/2 only to who asks for it in the handshake.
    credentials.set_alpn_protocols(["h2"])
    return credentials


def request_headers(target: Target, is_tls: bool, metadata: Metadata | None) -> list[Header]:
    """Returns the headers of the one request that a connection makes.

    Raises:
      SpecError: HTTP/2 does not take the metadata.
    """
    checked = check_metadata(metadata) or ()
    version = importlib.metadata.version("dm-env-rpc-client")
    return [
        (":method", "POST"),
        (":scheme", "https" if is_tls else "http"),
        (":path", PROCESS),
        (":authority", target.authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", f"dm-env-rpc-client/{version}"),
        *(
            (key, base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value)
            for key, value in checked
        ),
    ]


def connect_socket(target: Target, tls: ssl.SSLContext | None, deadline: float | None) -> Any:
    """Opens a socket to the first address of a name that takes it.

    Args:
      target: where to.
      tls: for an encrypted connection.
      deadline: on the monotonic clock; None for any time.

    Returns:
      A non-blocking socket.

    Raises:
      OSError: no address could be reached; that of the last one.
      TimeoutError: not in time.
    """
    error: OSError = OSError(f"no address for {target.host}")
    places = _places(target, deadline)
    for index, (family, where) in enumerate(places):
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            remaining = None if deadline is None else _remaining(deadline)
            connecting.settimeout(seconds_to_accept(remaining, len(places) - index))
            connecting.connect(where)
            set_options(connecting)
            if tls is None:
                connecting.setblocking(False)
                return connecting
            connecting.settimeout(None if deadline is None else _remaining(deadline))
            encrypted = tls.wrap_socket(connecting, server_hostname=target.host or "localhost")
            if encrypted.selected_alpn_protocol() != "h2":
                encrypted.close()
                raise ConnectionError("the server does not offer HTTP/2 (h2) in the TLS handshake")
            encrypted.setblocking(False)
            return encrypted
        except OSError as caught:
            connecting.close()
            error = caught
        except BaseException:
            connecting.close()
            raise
    raise error


def seconds_to_accept(remaining: float | None, places: int) -> float | None:
    """Returns how long an address of a name may take to accept a connection.

    Addresses share the time, so that one that does not respond leaves time for the next ones.

    Args:
      remaining: the seconds that are left; None for no limit.
      places: the number of addresses that are left, this one included.
    """
    if places == 1:
        return remaining
    return _ACCEPT_SECONDS if remaining is None else min(_ACCEPT_SECONDS, remaining / places)


def _places(target: Target, deadline: float | None) -> list[tuple[int, Any]]:
    if target.path:
        return [(socket.AF_UNIX, target.path)]
    found = _look_up(target, deadline)
    return [(int(family), where) for family, _, _, _, where in found]


def _look_up(target: Target, deadline: float | None) -> list[Any]:
    """Resolves a name, in a thread of its own where that may take time: it has no time-out."""
    outcome: list[Any] = []

    def look_up() -> None:
        try:
            outcome.append(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except OSError as error:
            outcome.append(error)

    if target.host == "localhost" or _is_number(target.host) or deadline is None:
        look_up()
    else:
        thread = threading.Thread(target=look_up, name=f"look up {target.host}", daemon=True)
        thread.start()
        thread.join(_remaining(deadline))
    if not outcome:
        raise TimeoutError(f"the name {target.host} was not resolved in time")
    if isinstance(outcome[0], OSError):
        raise outcome[0]
    found: list[Any] = outcome[0]
    return found


class Attempts:
    """Attempts to reach a server until there is no time left.

    Args:
      address: what error messages call the server.
      timeout: seconds until there must be a connection; None for any time.

    Attributes:
      deadline: when that is, on the monotonic clock.
    """

    def __init__(self, address: str, timeout: float | None):
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self._address = address
        self._timeout = timeout
        self._cause: DmEnvRpcClientError | None = None

    @property
    def remaining(self) -> float | None:
        """The seconds that are left."""
        return None if self.deadline is None else _remaining(self.deadline)

    def failed(self, error: OSError) -> None:
        """Takes note of an attempt that failed; returns if another may be made.

        Raises:
          DmEnvRpcClientError: there is no time for another, or it would end like this one.
        """
        # That there was no time left for the last attempt is not the cause.
        if self._cause is None or not isinstance(error, TimeoutError):
            self._cause = self._not_connected(error)
        is_final = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
        soon = time.monotonic() + RETRY_SECONDS
        if is_final or (self.deadline is not None and soon >= self.deadline):
            raise self._cause from error

    def _not_connected(self, error: OSError) -> DmEnvRpcClientError:
        code = "DEADLINE_EXCEEDED" if isinstance(error, TimeoutError) else "UNAVAILABLE"
        if error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
            text = os.strerror(error.errno)  # asyncio has texts of its own.
        else:
            text = error.strerror or str(error)
        return not_connected(self._address, self._timeout, code, text)


def set_options(connected: socket.socket) -> None:
    """Makes a TCP socket send at once and notice when the other machine has gone."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _needs_proxy(host: str) -> bool:
    """Whether a variable such as `https_proxy` or `grpc_proxy` says so, as it does to grpcio."""
    proxies = urllib.request.getproxies().keys() & {"grpc", "https", "http"}
    return bool(proxies) and not urllib.request.proxy_bypass(host)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _remaining(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
