"""Limits on the data of a library, which are checked before memory is allocated."""

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
"""Bytes of all observations of one step; the observations of its events have the same limit."""

MAX_COUNT = 1 << 16
"""Actions, observations, event types, pending events, or properties."""

MAX_TEXT_BYTES = 1 << 20
"""Bytes of a name, a message or the value of a property."""

MAX_PROPERTY_DEPTH = 64
"""Levels of nested properties."""
