"""How much a library may ask for. What is beyond is refused before memory is taken."""

from __future__ import annotations

from dm_env_rpc_client.tensors import packing

__all__ = [
    "MAX_BYTES",
    "MAX_COUNT",
    "MAX_DIMENSIONS",
    "MAX_PROPERTY_DEPTH",
    "MAX_TEXT_BYTES",
]

MAX_DIMENSIONS = packing.MAX_DIMENSIONS
"""Dimensions of an observation."""

MAX_BYTES = 1 << 28
"""Bytes of all observations of one step; the same again for those of its events."""

MAX_COUNT = 1 << 16
"""Actions, observations, event types, pending events, or properties."""

MAX_TEXT_BYTES = 1 << 20
"""Bytes of a name, a message or the value of a property."""

MAX_PROPERTY_DEPTH = 64
"""Lists of properties inside one another."""
