"""The table of all checks, in the order in which they run."""

from __future__ import annotations

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.checks import (
    actions,
    joining,
    observations,
    property_extension,
    sequences,
    spec_sanity,
    streaming,
    world_lifetimes,
    world_resets,
)

__all__ = ["CHECKS"]

_MODULES = (
    world_lifetimes,
    joining,
    spec_sanity,
    observations,
    actions,
    sequences,
    world_resets,
    streaming,
    property_extension,
)

CHECKS: tuple[Check, ...] = tuple(
    row for module in _MODULES for row in vars(module).values() if isinstance(row, Check)
)
"""Every check, in the order of their subjects."""
