"""Environments that dial in: their servers connect to the program that uses them.

The guide is `docs/how-to/dial-in.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dm_env_rpc_client.environment import worlds
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.transports.credentials import ServerCredentials
from dm_env_rpc_client.transports.http2.dial_in.incoming import IncomingSockets

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import IncomingKeywords

__all__ = ["Incoming", "listen"]


class Incoming(IncomingSockets):
    """Where servers dial in; made by `listen`. Any thread may use it.

    Attributes:
      address: where it listens, with the port that it got.
      refused: how many servers were turned away.
    """

    def make(
        self,
        create_world_settings: Mapping[str, Any] = NO_SETTINGS,
        join_world_settings: Mapping[str, Any] = NO_SETTINGS,
        **make_kwargs: Unpack[IncomingKeywords],
    ) -> DmEnvAdaptor:
        """Creates and joins a world on a server that has dialed in; waits for one.

        Args:
          create_world_settings: values by name, nested or flat; see `pack_settings`.
          join_world_settings: the same.
          **make_kwargs: as for `dm_env_rpc_client.make`, such as `timeout`, the seconds to wait for
            a server, and `restart`; but nothing about how to connect.

        Returns:
          The environment. When it is closed, the server can be used again.

        Raises:
          DeadlineExceededError: no server dialed in within `timeout`.
          ConnectionClosedError: `close` was called. Otherwise as `make`.
        """
        return worlds.make(self, create_world_settings, join_world_settings, **make_kwargs)

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Incoming at {self.address}: {self.waiting} environments wait>"


def listen(
    address: str,
    *,
    credentials: ServerCredentials | None = None,
    token: str | None = None,
    insecure: bool = False,
) -> Incoming:
    """Listens for servers of environments that dial in, as `serve(dial=...)` does.

    Args:
      address: `host:port` or `unix:path`; port 0 takes a free one.
      credentials: a `Tls` with `cert` and `key`, and with `ca` if the servers need a certificate;
        or an ssl.SSLContext of a server; None for plaintext.
      token: a secret that the servers have to send; None lets everybody in.
      insecure: allow plaintext on an address that other machines can reach.

    Returns:
      The Incoming; close it, or use it as a context manager. Environments that were made stay.

    Raises:
      SpecError: plaintext on an address that other machines can reach, without `insecure`; wrong
        credentials or a wrong token; or the system is not Linux.
      OSError: the address is taken, or does not belong to this machine.
    """
    return Incoming(address, credentials, token, insecure)
