"""The services that every server of this package has beside the environment's, without a token."""

from __future__ import annotations

from typing import NamedTuple

from dm_env_rpc_client.transports.server_streams import ServerStream
from dm_env_rpc_client.transports.services import health
from dm_env_rpc_client.transports.services.reflection import REFLECTIONS, open_reflection


class OwnCall(NamedTuple):
    """A call of such a service.

    Attributes:
      stream: what answers it.
      is_unary: whether it ends with the answer.
      stays: whether it goes on when the client sends no more.
    """

    stream: ServerStream
    is_unary: bool = False
    stays: bool = False


def open_own(path: str) -> OwnCall | None:
    """Returns what answers a method of these services; None for other methods."""
    if path in (health.CHECK, health.LIST):
        return OwnCall(health.HealthStream(path), is_unary=True)
    if path == health.WATCH:
        return OwnCall(health.HealthStream(path), stays=True)
    reflection = open_reflection() if path in REFLECTIONS else None
    return None if reflection is None else OwnCall(reflection)
