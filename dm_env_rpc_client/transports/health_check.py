"""Health checks of any gRPC server, as performed by load balancers and orchestrators."""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple

import grpc

from dm_env_rpc_client.errors import DeadlineExceededError, ProtocolError
from dm_env_rpc_client.system.waiting import release, uninterrupted
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.grpc.channel import open_channel
from dm_env_rpc_client.transports.net.status import stream_error
from dm_env_rpc_client.transports.opening import grpc_credentials
from dm_env_rpc_client.transports.services import CHECK, STATUSES

SERVING = "SERVING"

UNIMPLEMENTED = "UNIMPLEMENTED"
"""The status reported for a server that has no health service."""

_LEAST_SECONDS = 0.1


class Answered(NamedTuple):
    """The health of a server.

    Attributes:
      status: the name of a ServingStatus, such as "SERVING"; "UNIMPLEMENTED" if the server has no
        health service.
      seconds: the time from the request to the answer, in seconds, excluding the time for
        connecting.
    """

    status: str
    seconds: float


def check_health(endpoint: Endpoint, service: str, timeout: float) -> Answered:
    """Query the health of one of a server's services.

    Args:
      endpoint: the server and how to connect to it.
      service: the name of the service, such as "dm_env_rpc.v1.Environment"; "" for the whole
        server. At most 127 bytes are allowed.
      timeout: the total time limit, in seconds, for connecting and receiving the answer.
        Connecting is retried while the server does not listen yet.

    Returns:
      The server's health.

    Raises:
      ConnectionLostError: no connection was opened within `timeout`, or the connection was lost;
        the text states the reason.
      DeadlineExceededError: no answer was received within `timeout`.
      ProtocolError: the answer is not that of a health service.
      SpecError: grpcio does not accept the credentials.
    """
    deadline = time.monotonic() + timeout
    channel = open_channel(
        endpoint.address, grpc_credentials(endpoint), timeout, endpoint.max_message_bytes
    )
    try:
        ask: Any = channel.unary_unary(CHECK)
        name = service.encode()
        # HealthCheckRequest: field 1 is the name.
        message = b"\x0a" + bytes([len(name)]) + name if name else b""
        began = time.monotonic()
        try:
            answer: bytes = uninterrupted(
                functools.partial(
                    ask,
                    message,
                    timeout=max(deadline - began, _LEAST_SECONDS),
                    metadata=endpoint.metadata,
                )
            )
        except grpc.RpcError as error:
            status = _status_in(error, endpoint.address)
        else:
            status = _status_of(answer, endpoint.address)
        return Answered(status, time.monotonic() - began)
    finally:
        release(channel.close)


def _status_in(error: Any, address: str) -> str:
    code = error.code()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UNIMPLEMENTED
    if code is grpc.StatusCode.NOT_FOUND:
        return "SERVICE_UNKNOWN"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        raise DeadlineExceededError(
            f"the server at {address} did not answer a health check in time"
        ) from error
    raise stream_error(address, code.name, error.details()) from error


def _status_of(answer: bytes, address: str) -> str:
    # HealthCheckResponse: field 1 is the status. proto3 does not send the default, 0.
    number = 0 if not answer else answer[1] if len(answer) == 2 and answer[0] == 0x08 else -1
    if not 0 <= number < len(STATUSES):
        raise ProtocolError(
            f"the server at {address} answered a health check with {answer[:20].hex()}; expected a "
            "HealthCheckResponse"
        )
    return STATUSES[number]
