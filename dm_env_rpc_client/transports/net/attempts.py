"""Repeat attempts to connect to a server within a time limit, and report why they failed."""

from __future__ import annotations

import logging
import math
import os
import re
import ssl
import time

from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.transports.net.status import NO_HTTP2, not_connected

_log = logging.getLogger(__name__)

RETRY_SECONDS = 0.05
"""The pause, in seconds, between two attempts to connect to a server that is not listening yet."""

_CLIENT_CERTIFICATE = (
    "it might require a client certificate (cert and key of Tls), or have rejected the one sent"
)

NAMELESS_ALERT = "the server ended the TLS connection with an alert"
"""The message for a TLS alert after the handshake; grpcio does not report the alert's name."""

# What alerts of a server mean (RFC 8446, 6, and RFC 7301), by a part of their names in OpenSSL.
# With TLS 1.2 a server that requires a client certificate only reports a failed handshake.
_ALERTS = {
    "NO APPLICATION PROTOCOL": f"{NO_HTTP2}: a proxy at this port does not speak HTTP/2",
    "PROTOCOL VERSION": "the server requires another version of TLS",
    "UNRECOGNIZED NAME": "the server has no certificate for the host of the address",
    "CERTIFICATE": _CLIENT_CERTIFICATE,
    "UNKNOWN CA": _CLIENT_CERTIFICATE,
    "ACCESS DENIED": _CLIENT_CERTIFICATE,
    "HANDSHAKE FAILURE": _CLIENT_CERTIFICATE,
}

# OpenSSL has no word "alert" for the one about names.
_ALERT = re.compile(r"(?:ALERT |(?=UNRECOGNIZED NAME))([A-Z ]+)")

_BROKEN_OFF_SECONDS = 1.0
"""The time limit, in seconds, for retrying TLS handshakes that the server breaks off. A server
that is still starting can break off handshakes."""

_TELL_SECONDS = 1.0
"""How long, in seconds, attempts must have failed before the failure is logged. Nothing is logged
if less than this time is left until the deadline."""


class HandshakeError(ConnectionError):
    """An error for a TLS handshake that failed after the server had accepted the connection.

    Args:
      error: the cause of the failure, as an exception or a string.

    Attributes:
      is_broken_off: whether the server closed the connection without giving a reason. A server
        does so if it is starting, or if it requires a client certificate. Other failures are final.
    """

    def __init__(self, error: OSError | str):
        self.is_broken_off = isinstance(
            error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError
        )
        reason = (error if isinstance(error, str) else error.strerror) or str(error)
        if self.is_broken_off:
            reason = (
                "the server closed the connection during the TLS handshake or right after it; "
                f"{_CLIENT_CERTIFICATE}"
            )
        elif "WRONG_VERSION_NUMBER" in reason:
            reason = "the server does not speak TLS, but this connection uses TLS"
        else:
            reason += _meaning(reason)
        super().__init__(reason)


def _meaning(reason: str) -> str:
    """Return "; " and the meaning of the alert in a handshake error, or "" if none is known."""
    if reason == NAMELESS_ALERT:
        return f"; {_CLIENT_CERTIFICATE}"
    found = _ALERT.search(reason.upper().replace("_", " "))
    if found is None:
        return ""
    meanings = (text for alert, text in _ALERTS.items() if alert in found[1])
    return "".join(f"; {meaning}" for meaning in list(meanings)[:1])


class Attempts:
    """Attempts to connect to a server, repeated until the deadline.

    Args:
      address: the server's name in error messages.
      timeout: the time limit for the connection, in seconds, or None for no limit.

    Attributes:
      address: the server's name in error messages.
      deadline: the time on the monotonic clock at which the timeout ends, or None for no limit.
    """

    def __init__(self, address: str, timeout: float | None):
        self._begun = time.monotonic()
        self.deadline = None if timeout is None else self._begun + timeout
        self.address = address
        self._timeout = timeout
        self._cause: DmEnvRpcClientError | None = None
        self._broken_off_since: float | None = None
        self._has_told = False

    @property
    def remaining(self) -> float | None:
        """The time until the deadline, in seconds, or None if there is no deadline."""
        return None if self.deadline is None else seconds_left(self.deadline)

    def failed(self, error: OSError) -> None:
        """Record a failed attempt, and raise an error unless another attempt can follow.

        Raises:
          DmEnvRpcClientError: no time is left for another attempt, or it would fail, too.
        """
        is_final = isinstance(error, HandshakeError) and self._is_final(error)
        self._tell(error)
        # That there was no time left for the last attempt is not the cause.
        if self._cause is None or not isinstance(error, TimeoutError):
            code = "DEADLINE_EXCEEDED" if isinstance(error, TimeoutError) else "UNAVAILABLE"
            timeout = None if is_final else self._timeout
            self._cause = not_connected(self.address, timeout, code, _reason(error))
        soon = time.monotonic() + RETRY_SECONDS
        if is_final or (self.deadline is not None and soon >= self.deadline):
            raise self._cause from error

    def _is_final(self, error: HandshakeError) -> bool:
        if not error.is_broken_off:
            return True
        now = time.monotonic()
        if self._broken_off_since is None:
            self._broken_off_since = now
        return now - self._broken_off_since >= _BROKEN_OFF_SECONDS

    def _tell(self, error: OSError) -> None:
        """Log once that there is still no connection, to explain why the program is waiting."""
        now = time.monotonic()
        left = math.inf if self.deadline is None else self.deadline - now
        if not self._has_told and now - self._begun >= _TELL_SECONDS and left > _TELL_SECONDS:
            self._has_told = True
            limit = "" if math.isinf(left) else f" for {left:.0f} s more"
            _log.warning(
                "no connection to %s yet: %s; trying again%s",
                self.address,
                _reason(error) or "no reply",
                limit,
            )


def _reason(error: OSError) -> str:
    if error.errno and error.errno > 0 and not isinstance(error, HandshakeError):
        return os.strerror(error.errno)  # asyncio has texts of its own.
    return error.strerror or str(error)


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline, at least 0.001 because 0 means non-blocking."""
    return max(0.001, deadline - time.monotonic())
