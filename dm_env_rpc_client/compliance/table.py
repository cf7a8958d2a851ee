"""The table of all checks, in the order in which they run."""

from __future__ import annotations

from dm_env_rpc_client.compliance.check import Check
from dm_env_rpc_client.compliance.checks import (
    actions,
    joining,
    observations,
    properties,
    sequences,
    spec_sanity,
    streaming,
    world_resets,
    worlds,
)

__all__ = ["CHECKS"]

_MODULES = (
    worlds,
    joining,
    spec_sanity,
    observations,
    actions,
    sequences,
    world_resets,
    streaming,
    properties,
)

CHECKS: tuple[Check, ...] = tuple(
    row for module in _MODULES for row in vars(module).values() if isinstance(row, Check)
)
"""Every check, by what it is about."""
