"""Convert gRPC, HTTP and HTTP/2 status codes into errors for failed or ended streams.

Running out of file descriptors causes misleading errors, so this module checks for that case.
"""

from __future__ import annotations

import errno
import os
import resource

import grpc

from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    ProtocolError,
)

PROCESS = "/dm_env_rpc.v1.Environment/Process"
"""The path of the only method of the service `Environment`."""

NO_HTTP2 = "the server does not offer HTTP/2 (h2) in the TLS handshake"

GRPC_CODES = tuple(
    code.name for code in sorted(grpc.StatusCode, key=lambda code: int(code.value[0]))
)
"""The names of gRPC's status codes, in numerical order."""

_HTTP2_NAMES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
    "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR",
    "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)  # fmt: skip

# Codes with a meaning other than INTERNAL ("gRPC over HTTP/2", Errors).
_HTTP2_CODES = {
    "REFUSED_STREAM": "UNAVAILABLE",
    "CANCEL": "CANCELLED",
    "ENHANCE_YOUR_CALM": "RESOURCE_EXHAUSTED",
    "INADEQUATE_SECURITY": "PERMISSION_DENIED",
    "HTTP_1_1_REQUIRED": "UNKNOWN",
}

_HTTP_CODES = {
    "400": "INTERNAL",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED",
    "429": "UNAVAILABLE",
    "502": "UNAVAILABLE",
    "503": "UNAVAILABLE",
    "504": "UNAVAILABLE",
}


def http2_error(number: int) -> tuple[str, str]:
    """Return the name of an HTTP/2 error code and the corresponding gRPC code."""
    name = _HTTP2_NAMES[number] if number < len(_HTTP2_NAMES) else f"error {number}"
    return name, _HTTP2_CODES.get(name, "INTERNAL")


def code_of_http_status(status: str) -> str:
    """Return the gRPC code for an HTTP status other than 200, such as "503"."""
    return _HTTP_CODES.get(status, "UNKNOWN")


def abrupt(what: str) -> str:
    """Return the description of a stream that ended without a gRPC status.

    A gRPC server ends its streams with trailers, which contain the status. A proxy that has already
    sent the headers of a response can only break off the response.

    Args:
      what: a description of how the stream ended.
    """
    return f"{what}; a proxy's limit or timeout can be the cause"


def stream_error(address: str, code: str, details: str | None) -> DmEnvRpcClientError:
    """Return the error for a stream that ended with a gRPC status.

    Args:
      address: the server's name in error messages.
      code: the name of the status, or its number as a string.
      details: the server's description of the error, or None.
    """
    if code not in GRPC_CODES:
        known = len(code) < 3 and code.isascii() and code.isdigit() and int(code) < len(GRPC_CODES)
        code = GRPC_CODES[int(code)] if known else "UNKNOWN"
    text = details or "no details"
    if code == "OK":
        ended = f"the server at {address} ended the stream"
        return ConnectionLostError(f"{ended} {details}" if details else ended, code)
    if code == "UNIMPLEMENTED":
        return ProtocolError(
            f"the server at {address} does not speak dm_env_rpc: it answered UNIMPLEMENTED "
            f"({text}) to {PROCESS}; check the address and port of the environment"
        )
    return ConnectionLostError(f"stream to {address} ended with {code}: {text}", code)


def silent(address: str, seconds: float) -> DmEnvRpcClientError:
    """Return the error for a server that does not answer a probe.

    Args:
      address: the server's name in error messages.
      seconds: the time without a sign of life, in seconds.
    """
    text = (
        f"the server did not answer a probe for {seconds:g} s; if its environment computes that "
        "long without releasing the GIL, pass a longer keepalive_timeout (--keepalive-timeout)"
    )
    return stream_error(address, "UNAVAILABLE", text)


UNREACHABLE = (
    "the server's machine no longer acknowledges sent bytes; check that it is running and that the "
    "network reaches it"
)
"""The description of a connection that ended because the server's machine is unreachable."""


def unreachable(address: str) -> DmEnvRpcClientError:
    """Return the error for a server whose machine is unreachable."""
    return stream_error(address, "UNAVAILABLE", UNREACHABLE)


def not_connected(
    address: str, timeout: float | None, code: str, details: str | None
) -> DmEnvRpcClientError:
    """Return the error for a client that could not connect to a server.

    Args:
      address: the server's name in error messages.
      timeout: the exceeded time limit, in seconds, or None if another reason ended the attempts.
      code: the name of the gRPC status of the last attempt.
      details: the reason why the last attempt failed.
    """
    prefix = f"could not connect to {address}"
    if timeout is not None:
        prefix += f" within {timeout:g} s"
    if code in ("DEADLINE_EXCEEDED", "CANCELLED"):
        return DeadlineExceededError(
            f"{prefix}: no reply; check that this is the address of a dm_env_rpc server"
        )
    # grpcio's texts may end with unrelated bytes of memory.
    details = (details or code).partition("\0")[0].rstrip()
    full = used_up()
    if full:
        # The resolver of names and others say something else then, such as "busy".
        return ConnectionLostError(f"{prefix}: {full} ({details})", code)
    hint = "check the address and that both ends use matching credentials"
    if "refused" in details.lower():
        hint = "check that the server is running and listening at this address"
    elif NO_HTTP2 in details:
        hint = "configure the proxy to offer HTTP/2, or use the address of the server behind it"
    return ConnectionLostError(f"{prefix}: {details}; {hint}", code)


def used_up(needed: int = 1) -> str:
    """Return advice if file descriptors have run out, or "" if enough are free.

    Args:
      needed: the number of descriptors that must be free.
    """
    opened: list[int] = []
    try:
        for _ in range(needed):
            opened.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return ""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        where = (
            f"this process, which may have {most}" if error.errno == errno.EMFILE else "the system"
        )
        return (
            f"there are no file descriptors left in {where}; close unused files and "
            "connections, or raise the limit (ulimit -n)"
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return ""
