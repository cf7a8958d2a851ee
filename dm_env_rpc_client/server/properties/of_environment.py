"""The properties that an environment offers to the clients that are joined to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.server.properties.strings import StringProperties, has_string_properties


def properties_of(
    environment: Any, allowed: tuple[Sequence[str], Sequence[str]]
) -> Properties | None:
    """Returns the properties of an environment; None if it has none.

    Args:
      environment: the environment.
      allowed: the names that clients may call, and those that they may set.
    """
    properties = getattr(environment, "properties", None)
    if isinstance(properties, Properties):
        return properties
    if isinstance(properties, Mapping):
        offered = Properties.of_getters(properties)
        offer_calls = getattr(environment, "offer_calls", None)
        if offer_calls is not None and any(allowed):
            offer_calls(offered, *allowed)
        return offered
    return StringProperties(environment) if has_string_properties(environment) else None
