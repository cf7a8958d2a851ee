"""A server readiness check that sends a request without side effects."""

from __future__ import annotations

import dataclasses

from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.connecting import open_connection
from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcError
from dm_env_rpc_client.protocol.envelopes import EnvironmentRequest

_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED")


def check_answers(address: str, timeout: float, options: ConnectOptions) -> None:
    """Send a request to a server and wait for the answer.

    The request is LeaveWorld, which has no effect for a connection that is not joined ("Leave
    World" in the protocol reference). Refusing a missing token counts as an answer.

    Args:
      address: the address of the server.
      timeout: time limit, in seconds, which applies separately to connecting and to the answer.
      options: connection options.

    Raises:
      As `connect` and `Connection.send`, if there is no answer.
    """
    limited = dataclasses.replace(options, timeout=timeout, request_timeout=timeout)
    with open_connection(limited.endpoint(address), limited) as connection:
        try:
            connection.send(EnvironmentRequest().leave_world)
        except DmEnvRpcError:
            pass  # An error is an answer.
        except ConnectionLostError as error:
            if error.code not in _REFUSALS:
                raise
